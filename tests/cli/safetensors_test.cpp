// SPDX-License-Identifier: Apache-2.0
#include "io/safetensors.hpp"

#include <cstring>

#include "memory_file.hpp"

namespace convoy::io {
namespace {

std::string file_of(const std::string& header, const std::string& data, std::uint64_t length) {
  std::string out(8, '\0');
  for (int i = 0; i < 8; ++i) out[std::size_t(i)] = char(length >> (8 * i));
  return out + header + data;
}
std::string file_of(const std::string& header, const std::string& data) {
  return file_of(header, data, header.size());
}

HostTensor read(const std::string& bytes, const std::string& tensor) {
  MemorySource source("file", std::as_bytes(std::span(bytes)));
  return read_safetensors(source, tensor);
}

std::string refused(const std::string& bytes, const std::string& tensor = "") {
  return refusal(bytes, [&](ByteSource& source) { read_safetensors(source, tensor); });
}

const std::string kTwo =
    R"({"__metadata__":{"format":"pt"},"w":{"dtype":"BF16","shape":[2,1],"data_offsets":[0,4]},)"
    R"("b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})";

TEST(Safetensors, ReadsByName) {
  const std::string data("\x01\x02\x03\x04\x00\x00\x80\x3f", 8);
  const HostTensor w = read(file_of(kTwo, data), "w");
  EXPECT_EQ(w.dtype, DType::bf16);
  EXPECT_EQ(w.shape, (std::vector<std::int64_t>{2, 1}));
  EXPECT_EQ(std::memcmp(w.bytes.data(), "\x01\x02\x03\x04", 4), 0);
  const HostTensor b = read(file_of(kTwo, data), "b");
  EXPECT_EQ(b.dtype, DType::fp32);
  EXPECT_EQ(values<float>(b)[0], 1.0f);
}

TEST(Safetensors, NeedsNoNameForTheOnlyTensor) {
  const std::string header = R"({"x":{"dtype":"F16","shape":[],"data_offsets":[0,2]}})";
  EXPECT_EQ(read(file_of(header, "ab"), "").dtype, DType::fp16);
}

TEST(Safetensors, RefusesWithTheReason) {
  const std::string data(8, 'x');
  const auto expect = [](const std::string& bytes, const std::string& tensor,
                         const std::string& reason) {
    EXPECT_NE(refused(bytes, tensor).find(reason), std::string::npos) << refused(bytes, tensor);
  };
  const auto one = [&](const std::string& entry) { return file_of("{\"x\":" + entry + "}", data); };
  expect("", "", "truncated");
  expect(std::string(8, '\xff'), "", "is not a safetensors file");
  expect(file_of("{}", "", 50'000'000), "", "truncated: a header of 50000000 bytes");
  expect(file_of("{\"x\":", ""), "", "not a JSON object");
  expect(file_of("[1]", ""), "", "not a JSON object");
  expect(file_of("{}", ""), "", "holds no tensor");
  expect(file_of(kTwo, data), "", "holds several tensors, name one as FILE:TENSOR");
  expect(file_of(kTwo, data), "v", "holds no tensor 'v'; it holds: b, w");
  expect(file_of(kTwo, data), "__metadata__", "holds no tensor");
  expect(file_of(kTwo, data.substr(0, 7)), "b", "ends at byte 8 of the data, the file holds 7");
  expect(one(R"({"dtype":"F64","shape":[1],"data_offsets":[0,8]})"), "", "type 'F64'");
  expect(one(R"({"dtype":"F32","shape":[3],"data_offsets":[0,8]})"), "",
         "needs 12 bytes, data_offsets give 8");
  expect(one(R"({"dtype":"F32","shape":[-2],"data_offsets":[0,8]})"), "", "shape is not a list");
  expect(one(R"({"dtype":"F32","shape":[1.5],"data_offsets":[0,8]})"), "", "shape is not a list");
  expect(one(R"({"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8]})"), "",
         "overflow 64 bits");
  expect(one(R"({"dtype":"F32","shape":[1000000000000],"data_offsets":[0,4000000000000]})"), "",
         "truncated");
  expect(one(R"({"dtype":"F32","shape":[2],"data_offsets":[8,0]})"), "", "not [begin, end]");
  expect(one("7"), "", "is not a JSON object");
  expect(file_of(R"({"x":{},"x":{}})", data), "x", "'x' twice");
  expect(file_of("{\"x\":" + std::string(100, '['), data), "", "nested too deeply");
}

TEST(Safetensors, WritesWhatItReads) {
  const TemporaryFolder folder;
  HostTensor tensor(DType::bf16, {1, 2, 2});
  for (std::size_t i = 0; i < tensor.bytes.size(); ++i) tensor.bytes.data()[i] = std::byte(i);
  AtomicFile file(folder / "a.safetensors");
  write_safetensors(file, tensor, "decoder.\"out\"");
  file.commit();
  FileSource source(folder / "a.safetensors");
  const HostTensor again = read_safetensors(source, "decoder.\"out\"");
  EXPECT_EQ(again.dtype, tensor.dtype);
  EXPECT_EQ(again.shape, tensor.shape);
  EXPECT_EQ(std::memcmp(again.bytes.data(), tensor.bytes.data(), tensor.bytes.size()), 0);
}

}  // namespace
}  // namespace convoy::io
