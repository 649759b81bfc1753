// SPDX-License-Identifier: Apache-2.0
// One or more forms of every opcode that the decoder knows: small statements that ptxas accepts and
// the decoder takes, and that it refuses with a modifier too many. What the forms compute is tested
// in the other files of this folder and, against an H200, by the probe.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <set>
#include <string_view>
#include <vector>

#include "exec/decoder.hpp"
#include "exec/harness.hpp"

namespace vgpu::test {
namespace {

/// Registers of the statements: p q predicates, h i 16 bits, a … f 32 bits, x … z 64 bits, w 128
/// bits; s a shared address, g a global one, bar an mbarrier, map a tensor map.
const char kBefore[] = R"(
  .reg .pred p, q;
  .reg .b16 h, i;
  .reg .b32 a, b, c, d, e, f, s;
  .reg .b64 x, y, z, g;
  .reg .b128 w;
  .shared .align 128 .b8 tile[1024];
  .shared .align 8 .b64 bar;
  .local .align 8 .b8 stack[16];
  mov.u32 s, tile;
  ld.param.u64 g, [out];
)";

struct Statement {
  const char* text;
  int gpu = 0;  ///< 90 or 100: only there
};

const Statement kStatements[] = {
    // integers
    {"add.s32 a, b, c;"},
    {"add.sat.s32 a, b, c;"},
    {"add.cc.u32 a, b, c;"},
    {"add.u16x2 a, b, c;"},
    {"add.s64 x, y, z;"},
    {"addc.cc.u32 a, b, c;"},
    {"addc.u64 x, y, z;"},
    {"sub.s32 a, b, 7;"},
    {"sub.cc.u32 a, b, c;"},
    {"subc.u32 a, b, c;"},
    {"mul.lo.s32 a, b, c;"},
    {"mul.hi.u64 x, y, z;"},
    {"mul.wide.u32 x, b, c;"},
    {"mul.wide.s16 a, h, i;"},
    {"mul24.lo.u32 a, b, c;"},
    {"mad.lo.s32 a, b, c, d;"},
    {"mad.wide.u32 x, b, c, y;"},
    {"mad.lo.cc.u32 a, b, c, d;"},
    {"mad24.hi.s32 a, b, c, d;"},
    {"mad24.hi.sat.s32 a, b, c, d;"},
    {"madc.hi.u32 a, b, c, d;"},
    {"madc.hi.cc.s64 x, y, z, g;"},
    {"fns.b32 a, b, c, d;"},
    {"div.s32 a, b, c;"},
    {"div.u64 x, y, z;"},
    {"rem.u32 a, b, c;"},
    {"min.s32 a, b, c;"},
    {"min.relu.s32 a, b, c;"},
    {"max.u64 x, y, z;"},
    {"max.s16x2 a, b, c;"},
    {"abs.s32 a, b;"},
    {"neg.s64 x, y;"},
    {"sad.s32 a, b, c, d;"},
    {"dp4a.u32.s32 a, b, c, d;"},
    {"dp2a.lo.s32.u32 a, b, c, d;"},
    // floating point
    {"add.f32 a, b, c;"},
    {"add.rz.ftz.sat.f32 a, b, c;"},
    {"add.rn.f64 x, y, z;"},
    {"add.f16x2 a, b, c;"},
    {"add.rn.f32x2 x, y, z;", 100},
    {"sub.rn.bf16 h, h, i;"},
    {"mul.rn.f32 a, b, 0f40000000;"},
    {"mul.f16 h, h, i;"},
    {"mul.rn.f32x2 x, y, z;", 100},
    {"mad.rn.f32 a, b, c, d;"},
    {"fma.rn.f32 a, b, c, d;"},
    {"fma.rm.f64 x, y, z, x;"},
    {"fma.rn.relu.bf16x2 a, b, c, d;"},
    {"fma.rn.f32x2 x, y, z, x;", 100},
    {"fma.rz.ftz.f32x2 x, y, z, x;", 100},
    {"add.rm.f32.f16 a, h, b;", 100},
    {"fma.rp.sat.f32.bf16 a, h, i, b;", 100},
    {"rcp.approx.ftz.f64 x, y;"},
    {"rsqrt.approx.ftz.f64 x, y;"},
    {"div.rn.f32 a, b, c;"},
    {"div.approx.f32 a, b, c;"},
    {"div.full.f32 a, b, c;"},
    {"min.NaN.f32 a, b, c;"},
    {"max.xorsign.abs.f32 a, b, c;"},
    {"max.NaN.f16x2 a, b, c;"},
    {"abs.f32 a, b;"},
    {"neg.f16 h, i;"},
    {"rcp.rn.f32 a, b;"},
    {"rcp.approx.ftz.f32 a, b;"},
    {"sqrt.rn.f32 a, b;"},
    {"rsqrt.approx.f32 a, b;"},
    {"ex2.approx.f32 a, b;"},
    {"ex2.approx.f16x2 a, b;"},
    {"lg2.approx.f32 a, b;"},
    {"sin.approx.f32 a, b;"},
    {"cos.approx.f32 a, b;"},
    {"tanh.approx.f32 a, b;"},
    {"copysign.f32 a, b, c;"},
    {"testp.finite.f32 p, a;"},
    // bits, comparisons, moves
    {"and.b32 a, b, c;"},
    {"and.pred p, p, q;"},
    {"or.b64 x, y, z;"},
    {"xor.b16 h, h, i;"},
    {"not.b32 a, b;"},
    {"not.pred p, q;"},
    {"cnot.b32 a, b;"},
    {"shl.b32 a, b, 3;"},
    {"shr.s64 x, y, a;"},
    {"shf.l.wrap.b32 a, b, c, d;"},
    {"shf.r.clamp.b32 a, b, c, 5;"},
    {"bfe.u32 a, b, 4, 8;"},
    {"bfe.s64 x, y, a, b;"},
    {"bfi.b32 a, b, c, 4, 8;"},
    {"bfind.shiftamt.u32 a, b;"},
    {"bmsk.clamp.b32 a, b, c;"},
    {"brev.b32 a, b;"},
    {"popc.b64 a, x;"},
    {"clz.b32 a, b;"},
    {"prmt.b32 a, b, c, 0x5410;"},
    {"prmt.b32.f4e a, b, c, d;"},
    {"lop3.b32 a, b, c, d, 0xe8;"},
    {"lop3.or.b32 a|p, b, c, d, 0xe8, q;"},
    {"lop3.and.b32 _|p, b, c, d, 0xe8, !q;"},
    {"szext.wrap.s32 a, b, c;"},
    {"setp.lt.s32 p, a, b;"},
    {"setp.geu.and.f32 p|q, a, b, q;"},
    {"setp.ne.b64 p, x, y;"},
    {"setp.gt.f16x2 p|q, a, b;"},
    {"set.lt.u32.f32 a, b, c;"},
    {"selp.b32 a, b, c, p;"},
    {"selp.f64 x, y, z, q;"},
    {"slct.u32.s32 a, b, c, d;"},
    {"slct.ftz.u64.f32 x, y, z, a;"},
    {"setp.lt.and.ftz.f16x2 p|q, a, b, p;"},
    {"mov.u32 a, %tid.x;"},
    {"mov.b64 x, {a, b};"},
    {"mov.b32 {h, i}, a;"},
    {"mov.b128 w, {x, y};"},
    {"mov.u64 x, %clock64;"},
    {"cvta.to.shared.u64 x, g;"},
    {"cvta.global.u64 x, g;"},
    {"isspacep.shared p, g;"},
    {"isspacep.const p, g;"},
    {"ld.mmio.relaxed.sys.global.u32 a, [g];"},
    {"isspacep.shared::cluster p, g;"},
    // conversions
    {"cvt.u64.u32 x, a;"},
    {"cvt.s32.s16 a, h;"},
    {"cvt.sat.u8.s32 a, b;"},
    {"cvt.rzi.s32.f32 a, b;"},
    {"cvt.rni.ftz.f32.f32 a, b;"},
    {"cvt.rn.f32.u64 a, x;"},
    {"cvt.rn.f16.f32 h, a;"},
    {"cvt.rn.bf16x2.f32 a, b, c;"},
    {"cvt.rn.relu.f16x2.f32 a, b, c;"},
    {"cvt.rna.tf32.f32 a, b;"},
    {"cvt.rn.satfinite.e4m3x2.f32 h, a, b;"},
    {"cvt.rn.f16x2.e5m2x2 a, h;"},
    // control flow and hints
    {"{\nbra.uni NEXT;\nNEXT:\n}"},
    {"{\nTARGETS: .branchtargets L0, L1;\nbrx.idx a, TARGETS;\nL0:\nL1:\n}"},
    {"@p ret;"},
    {"@p exit;"},
    {"@p trap;"},
    {"@p brkpt;"},
    {"call.uni helper;"},
    {"nanosleep.u32 100;"},
    {"pmevent 3;"},
    {"setmaxnreg.inc.sync.aligned.u32 240;"},
    {"setmaxnreg.dec.sync.aligned.u32 40;"},
    {"griddepcontrol.wait;"},
    {"griddepcontrol.launch_dependents;"},
    {"prefetch.global.L2 [g];"},
    {"prefetchu.L1 [g];"},
    {"applypriority.global.L2::evict_normal [g], 128;"},
    {"discard.global.L2 [g], 128;"},
    {"createpolicy.fractional.L2::evict_first.b64 x, 1.0;"},
    // warps
    {"shfl.sync.idx.b32 a, b, c, 31, -1;"},
    {"shfl.sync.bfly.b32 a|p, b, 1, 31, -1;"},
    {"vote.sync.ballot.b32 a, p, -1;"},
    {"vote.sync.any.pred p, q, -1;"},
    {"match.any.sync.b32 a, b, -1;"},
    {"match.all.sync.b64 a|p, x, -1;"},
    {"redux.sync.add.s32 a, b, -1;"},
    {"redux.sync.xor.b32 a, b, -1;"},
    {"redux.sync.min.abs.NaN.f32 a, b, -1;", 100},
    {"elect.sync a|p, -1;"},
    {"activemask.b32 a;"},
    {"bar.warp.sync -1;"},
    // barriers and fences
    {"bar.sync 0;"},
    {"bar.arrive 1, 64;"},
    {"bar.red.popc.u32 a, 0, p;"},
    {"barrier.sync 2, 64;"},
    {"barrier.cta.red.and.aligned.pred p, 0, q;"},
    {"barrier.cluster.arrive.relaxed.aligned;"},
    {"barrier.cluster.wait.acquire.aligned;"},
    {"fence.acq_rel.gpu;"},
    {"fence.sc.cluster;"},
    {"fence.proxy.async.shared::cta;"},
    {"fence.mbarrier_init.release.cluster;"},
    {"fence.proxy.tensormap::generic.release.gpu;"},
    {"membar.gl;"},
    // memory
    {"ld.global.u32 a, [g];"},
    {"ld.global.nc.L1::no_allocate.v4.f32 {a, b, c, d}, [g];"},
    {"ld.acquire.gpu.global.u32 a, [g];"},
    {"ld.relaxed.sys.u64 x, [g];"},
    {"ld.volatile.shared.u8 a, [s+3];"},
    {"ld.shared.v2.b64 {x, y}, [s];"},
    {"ld.shared.b128 w, [s];"},
    {"ld.shared::cluster.u32 a, [s];"},
    {"ld.local.u32 a, [stack+4];"},
    {"ld.param.u64 x, [out];"},
    {"ld.const.u32 a, [table];"},
    {"ldu.global.u32 a, [g];"},
    {"st.global.v4.b32 [g], {a, b, c, d};"},
    {"st.release.cluster.global.u32 [g], a;"},
    {"st.shared.u16 [s], h;"},
    {"st.local.u64 [stack], x;"},
    {"st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [s], a, [b];"},
    {"st.bulk.weak.shared::cta [s], 64, 0;", 100},
    {"atom.global.add.u32 a, [g], b;"},
    {"atom.shared.cas.b32 a, [s], b, c;"},
    {"atom.acq_rel.gpu.global.exch.b64 x, [g], y;"},
    {"atom.global.add.noftz.bf16x2 a, [g], b;"},
    {"red.global.add.f32 [g], a;"},
    {"red.release.gpu.global.max.s32 [g], a;"},
    {"red.global.v2.f32.add [g], {a, b};"},
    {"red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [s], a, [b];"},
    {"ldmatrix.sync.aligned.m8n8.x4.shared.b16 {a, b, c, d}, [s];"},
    {"ldmatrix.sync.aligned.m8n8.x2.trans.shared::cta.b16 {a, b}, [s];"},
    {"stmatrix.sync.aligned.m8n8.x4.shared.b16 [s], {a, b, c, d};"},
    {"ldmatrix.sync.aligned.m16n16.x1.trans.shared.b8 {a, b}, [s];", 100},
    {"ldmatrix.sync.aligned.m16n16.x2.trans.shared::cta.b8x16.b6x16_p32 {a, b, c, d}, [s];", 100},
    {"ldmatrix.sync.aligned.m8n16.x4.shared.b8x16.b4x16_p64 {a, b, c, d}, [s];", 100},
    {"stmatrix.sync.aligned.m16n8.x2.trans.shared.b8 [s], {a, b};", 100},
    {"movmatrix.sync.aligned.m8n8.trans.b16 a, b;"},
    {"mapa.shared::cluster.u32 a, s, 1;"},
    {"mapa.u64 x, g, a;"},
    {"getctarank.shared::cluster.u32 a, s;"},
    // mbarriers and asynchronous copies
    {"mbarrier.init.shared::cta.b64 [bar], 1;"},
    {"mbarrier.inval.shared::cta.b64 [bar];"},
    {"mbarrier.arrive.shared::cta.b64 x, [bar];"},
    {"mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [bar], 64;"},
    {"mbarrier.arrive.release.cluster.shared::cluster.b64 _, [s], 2;"},
    {"mbarrier.arrive_drop.shared::cta.b64 x, [bar];"},
    {"mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [bar], 16;"},
    {"mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [bar], 16;"},
    {"mbarrier.test_wait.shared::cta.b64 p, [bar], x;"},
    {"mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [bar], 0, 1000;"},
    {"mbarrier.pending_count.b64 a, x;"},
    {"cp.async.cg.shared.global [s], [g], 16;"},
    {"cp.async.ca.shared.global [s], [g], 8, a;"},
    {"cp.async.commit_group;"},
    {"cp.async.wait_group 1;"},
    {"cp.async.wait_all;"},
    {"cp.async.mbarrier.arrive.noinc.shared::cta.b64 [bar];"},
    {"cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [s], [g], 64, [bar];"},
    {"cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
     "[s], [g], 64, [bar], h;"},
    {"cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [s], [tile], 64, "
     "[b];"},
    {"cp.async.bulk.global.shared::cta.bulk_group [g], [s], 64;"},
    {"cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [g], [s], 64;"},
    {"cp.async.bulk.prefetch.L2.global [g], 64;"},
    {"cp.async.bulk.tensor.1d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
     "[s], [g, {a}], [bar];"},
    {"cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes "
     "[s], [g, {a, b, c, d, e}], [bar];"},
    {"cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes "
     "[s], [g, {a, b, c, d}], [bar], {h, i};"},
    {"cp.async.bulk.tensor.2d.cta_group::2.shared::cluster.global.tile.mbarrier::complete_tx::"
     "bytes "
     "[s], [g, {a, b}], [bar];",
     100},
    {"cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [g, {a, b, c}], [s];"},
    {"cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [g, {a, b}], [s];"},
    {"cp.async.bulk.prefetch.tensor.2d.L2.global.tile [g, {a, b}];"},
    {"tensormap.replace.tile.global_address.global.b1024.b64 [g], x;"},
    {"tensormap.replace.tile.rank.shared::cta.b1024.b32 [s], a;"},
    {"tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [s], 1, a;"},
    {"tensormap.replace.tile.global_stride.shared::cta.b1024.b64 [s], 0, x;"},
    {"tensormap.replace.tile.elemtype.global.b1024.b32 [g], 6;"},
    {"tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned "
     "[g], [s], 128;"},
    {"cp.async.bulk.commit_group;"},
    {"cp.async.bulk.wait_group 0;"},
    {"cp.async.bulk.wait_group.read 2;"},
    {"clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [s], "
     "[bar];",
     100},
    {"clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 p, w;", 100},
    {"clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128 {a, b, c, d}, w;", 100},
    // matrix products
    {"mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {a, b, c, d}, {a, b, c, d}, {e, f}, "
     "{a, b, c, d};"},
    {"mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {a, b, c, d}, {a, b, c, d}, {e, f}, "
     "{a, b, c, d};"},
    {"mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {x, y}, {z}, {y}, {x, y};"},
    {"mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 {x, y, z, x}, {z, x, y, z}, {y, z}, "
     "{x, y, z, x};",
     90},
    {"wmma.load.a.sync.aligned.row.m16n16k16.global.f16 {a, b, c, d, e, f, a, b}, [g], 16;"},
    {"wmma.load.b.sync.aligned.col.m32n8k16.shared.s8 {a}, [s];"},
    {"wmma.load.c.sync.aligned.row.m16n16k8.f32 {a, b, c, d, e, f, a, b}, [g];"},
    {"wmma.load.a.sync.aligned.row.m8n8k4.global.f64 {x}, [g];"},
    {"wmma.store.d.sync.aligned.col.m8n32k16.global.f16 [g], {a, b, c, d}, e;"},
    {"wmma.mma.sync.aligned.row.col.m16n16k16.f32.f16 {a, b, c, d, e, f, a, b}, {a, b, c, d, e, f, "
     "a, b}, {a, b, c, d, e, f, a, b}, {a, b, c, d};"},
    {"wmma.mma.sync.aligned.col.row.m8n32k16.s32.u8.u8.s32.satfinite {a, b, c, d, e, f, a, b}, "
     "{a}, "
     "{b, c, d, e}, {a, b, c, d, e, f, a, b};"},
    {"wmma.mma.sync.aligned.row.col.m8n8k4.rz.f64.f64.f64.f64 {x, y}, {z}, {y}, {x, y};"},
    {"wmma.mma.xor.popc.sync.aligned.row.col.m8n8k128.s32.b1.b1.s32 {a, b}, {c}, {d}, {a, b};"},
    {"wgmma.fence.sync.aligned;", 90},
    {"wgmma.commit_group.sync.aligned;", 90},
    {"wgmma.wait_group.sync.aligned 0;", 90},
    {"wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {a, b, c, d}, x, y, 1, 1, 1, 0, 0;", 90},
    {"wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {a, b, c, d}, {a, b, c, d}, y, p, 1, 1, 0;",
     90},
    {"wgmma.mma_async.sync.aligned.m64n8k32.s32.s8.s8 {a, b, c, d}, x, y, 1;", 90},
    {"wgmma.mma_async.sp.sync.aligned.m64n8k32.f32.f16.f16 {a, b, c, d}, x, y, e, 1, p, 1, 1, 0, "
     "0;",
     90},
    {"wgmma.mma_async.sp.sync.aligned.m64n8k64.s32.s8.u8.satfinite {a, b, c, d}, {a, b, c, d}, y, "
     "e, "
     "0, p;",
     90},
    {"wgmma.mma_async.sp.sync.aligned.m64n16k16.f32.tf32.tf32 {a, b, c, d, e, f, a, b}, x, y, e, "
     "0, "
     "p, 1, -1;",
     90},
    {"tcgen05.mma.sp.cta_group::1.kind::f16 [a], x, y, [s], b, p;", 100},
    {"tcgen05.mma.sp.cta_group::1.kind::mxf4.block_scale.block32 [a], x, y, [s], b, [c], [d], p;",
     100},
    {"tcgen05.mma.sp.cta_group::2.kind::mxf8f6f4.block_scale [a], [e], y, [s], b, [c], [d], p;",
     100},
    {"tcgen05.mma.sp.cta_group::1.kind::i8 [a], [c], y, [s], b, {c, d, e, f}, p;", 100},
    {"tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [s], 32;", 100},
    {"tcgen05.dealloc.cta_group::2.sync.aligned.b32 a, 64;", 100},
    {"tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;", 100},
    {"tcgen05.mma.cta_group::1.kind::f16 [a], x, y, b, p;", 100},
    {"tcgen05.mma.cta_group::1.kind::tf32 [a], [b], y, c, {c, d, e, f}, p;", 100},
    {"tcgen05.mma.cta_group::2.kind::i8 [a], x, y, b, p;", 100},
    {"tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [s];", 100},
    {"tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 "
     "[s], h;",
     100},
    {"tcgen05.ld.sync.aligned.32x32b.x4.b32 {a, b, c, d}, [s];", 100},
    {"tcgen05.ld.sync.aligned.16x256b.x1.b32 {a, b, c, d}, [s];", 100},
    {"tcgen05.ld.sync.aligned.16x32bx2.x1.b32 {a}, [s], 16;", 100},
    {"tcgen05.st.sync.aligned.16x128b.x1.b32 [s], {a, b};", 100},
    {"tcgen05.wait::ld.sync.aligned;", 100},
    {"tcgen05.wait::st.sync.aligned;", 100},
    {"tcgen05.fence::before_thread_sync;", 100},
    {"tcgen05.fence::after_thread_sync;", 100},
    {"tcgen05.cp.cta_group::1.128x256b [s], x;", 100},
};

/// The first word of the opcode of a statement's last instruction line.
std::string_view opcode_line(std::string_view text) {
  if (text.starts_with("{\n")) {  // the instruction behind labels and tables
    const size_t at = text.find("\nbr") + 1;
    text.remove_prefix(text.starts_with("{\nbra") ? 2 : at);
  }
  if (text.starts_with("@p ")) text.remove_prefix(3);
  return text;
}
std::string_view first_word(std::string_view text) {
  text = opcode_line(text);
  return text.substr(0, text.find_first_of(". ;"));
}

std::string kernel_of(const char* name, const std::string& statement) {
  return std::string(".visible .entry ") + name + "(.param .u64 out)\n{\n" + kBefore + statement +
         "\nret;\n}\n";
}
std::string module_head(int gpu) {
  return format(".version 9.0\n.target sm_%da\n.address_size 64\n", gpu) +
         ".const .align 4 .u32 table[4];\n.func helper() { ret; }\n";
}

TEST(OpcodeTable, NamesEveryOpcodeOfTheDecoder) {
  std::set<std::string_view> listed, known;
  for (const Statement& statement : kStatements) listed.insert(first_word(statement.text));
  for (auto* list : {&exec::integer_opcodes(),  &exec::float_opcodes(),    &exec::bit_opcodes(),
                     &exec::compare_opcodes(),  &exec::move_opcodes(),     &exec::convert_opcodes(),
                     &exec::control_opcodes(),  &exec::warp_opcodes(),     &exec::barrier_opcodes(),
                     &exec::memory_opcodes(),   &exec::atomic_opcodes(),   &exec::matrix_opcodes(),
                     &exec::mbarrier_opcodes(), &exec::copy_opcodes(),     &exec::cluster_opcodes(),
                     &exec::wgmma_opcodes(),    &exec::tcgen05_opcodes(),  &exec::mma_opcodes(),
                     &exec::wmma_opcodes(),     &exec::tensormap_opcodes()}) {
    for (const auto& entry : *list) known.insert(entry.opcode);
  }
  for (const std::string_view opcode : known) {
    EXPECT_TRUE(listed.count(opcode)) << "the decoder knows " << opcode << ", the table does not";
  }
  for (const std::string_view opcode : listed) EXPECT_TRUE(known.count(opcode)) << opcode;
  EXPECT_GE(known.size(), 90u);
}

TEST(OpcodeTable, EveryFormDecodes) {
  for (const Statement& statement : kStatements) {
    const auto program = exec::Program::load(module_head(statement.gpu ? statement.gpu : 100) +
                                             kernel_of("k", statement.text));
    EXPECT_EQ(program->refusals(), "") << statement.text;
  }
}

TEST(OpcodeTable, AModifierTooManyIsRefused) {
  for (const Statement& statement : kStatements) {
    const std::string_view line = opcode_line(statement.text);
    std::string text = statement.text;
    const size_t end =
        text.size() - line.size() + std::min(line.find_first_of(" ;"), line.size() - 1);
    text.insert(end, ".bogus");
    const auto program = exec::Program::load(module_head(statement.gpu ? statement.gpu : 100) +
                                             kernel_of("k", text));
    EXPECT_NE(program->refusals().find(".bogus"), std::string::npos) << "accepted: " << text;
  }
}

TEST(OpcodeTable, PtxasAcceptsEveryForm) {
  const char* ptxas = VGPU_PTXAS;
  if (!*ptxas) GTEST_SKIP() << "no ptxas on this machine";
  for (const int gpu : {90, 100}) {
    std::string text = module_head(gpu);
    int count = 0;
    for (const Statement& statement : kStatements) {
      if (statement.gpu == 0 || statement.gpu == gpu) {
        text += kernel_of(format("k%d", count++).c_str(), statement.text);
      }
    }
    const std::string path = testing::TempDir() + format("vgpu_opcode_table_%d.ptx", gpu);
    std::ofstream(path) << text;
    const std::string command = format("%s -arch=sm_%da -O0 -o /dev/null %s > %s.log 2>&1", ptxas,
                                       gpu, path.c_str(), path.c_str());
    const int status = std::system(command.c_str());
    std::ifstream log(path + ".log");
    EXPECT_EQ(status, 0) << std::string(std::istreambuf_iterator<char>(log), {}).substr(0, 4000);
    std::remove(path.c_str());
    std::remove((path + ".log").c_str());
  }
}

}  // namespace
}  // namespace vgpu::test
