// SPDX-License-Identifier: Apache-2.0
#include "io/npy.hpp"

#include <cstring>
#include <numeric>

#include "memory_file.hpp"

namespace convoy::io {
namespace {

/// A file with this header text and body, padded as numpy does.
std::string npy(const std::string& header, const std::string& body, int version = 1) {
  const std::size_t preamble = version == 1 ? 10 : 12;
  std::string text = header;
  text.append(63 - (preamble + text.size()) % 64, ' ');
  text.push_back('\n');
  std::string out = "\x93NUMPY";
  out += {char(version), '\0', char(text.size() & 0xff), char(text.size() >> 8)};
  if (version > 1) out += {'\0', '\0'};
  return out + text + body;
}

std::string float_bytes(std::initializer_list<float> list) {
  std::string out(4 * list.size(), '\0');
  std::memcpy(out.data(), list.begin(), out.size());
  return out;
}

HostTensor read(const std::string& bytes) {
  MemorySource source("file", std::as_bytes(std::span(bytes)));
  return read_npy(source);
}

std::string refused(const std::string& bytes) {
  return refusal(bytes, [](ByteSource& source) { read_npy(source); });
}

TEST(Npy, ReadsEveryVersionAndType) {
  for (int version : {1, 2, 3}) {
    const HostTensor tensor =
        read(npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }",
                 float_bytes({0, 1, 2, 3, 4, 5}), version));
    EXPECT_EQ(tensor.dtype, DType::fp32);
    EXPECT_EQ(tensor.shape, (std::vector<std::int64_t>{2, 3}));
    for (int i = 0; i < 6; ++i) EXPECT_EQ(values<float>(tensor)[i], float(i));
  }
  EXPECT_EQ(read(npy("{'descr': '<f2', 'fortran_order': False, 'shape': (1,), }", "ab")).dtype,
            DType::fp16);
  // How ml_dtypes' bfloat16 is saved, and how older releases saved it.
  for (const char* descr : {"<V2", "|V2"}) {
    const std::string header =
        std::string("{'descr': '") + descr + "', 'fortran_order': False, 'shape': (1,), }";
    EXPECT_EQ(read(npy(header, "ab")).dtype, DType::bf16);
  }
}

TEST(Npy, BringsFortranOrderIntoCOrder) {
  // Columns first: a[i][j] = 10 * i + j.
  const HostTensor tensor = read(npy("{'descr': '<f4', 'fortran_order': True, 'shape': (2, 3), }",
                                     float_bytes({0, 10, 1, 11, 2, 12})));
  const float expected[] = {0, 1, 2, 10, 11, 12};
  for (int i = 0; i < 6; ++i) EXPECT_EQ(values<float>(tensor)[i], expected[i]) << i;

  // Rank 3: element (i, j, k) at i + 2·j + 4·k.
  std::vector<float> flat(8);
  std::iota(flat.begin(), flat.end(), 0.0f);
  std::string body(32, '\0');
  std::memcpy(body.data(), flat.data(), 32);
  const HostTensor cube =
      read(npy("{'descr': '<f4', 'fortran_order': True, 'shape': (2, 2, 2), }", body));
  const float cube_expected[] = {0, 4, 2, 6, 1, 5, 3, 7};
  for (int i = 0; i < 8; ++i) EXPECT_EQ(values<float>(cube)[i], cube_expected[i]) << i;
}

TEST(Npy, ReadsEmptyAndScalar) {
  EXPECT_EQ(read(npy("{'descr': '<f4', 'fortran_order': False, 'shape': (0, 3), }", "")).elements(),
            0);
  EXPECT_EQ(read(npy("{'descr': '<f4', 'fortran_order': True, 'shape': (3, 0, 2), }", "")).shape,
            (std::vector<std::int64_t>{3, 0, 2}));
  EXPECT_EQ(read(npy("{'descr': '<f4', 'fortran_order': False, 'shape': (), }", float_bytes({7})))
                .elements(),
            1);
}

TEST(Npy, RefusesWithTheReason) {
  const std::string good = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 2), }";
  const std::string body = float_bytes({1, 2, 3, 4});
  EXPECT_EQ(refused(npy(good, body)), "accepted");
  const auto expect = [](const std::string& bytes, const std::string& reason) {
    EXPECT_NE(refused(bytes).find(reason), std::string::npos) << refused(bytes);
  };
  expect("", "is not an npy file");
  expect("PK\x03\x04 something else altogether", "is not an npy file");
  expect("\x93NUMPY\x01", "truncated");
  expect(npy(good, body).substr(0, 40), "truncated: the npy header is cut off");
  expect(npy(good, body.substr(0, 15)),
         "truncated: the header says shape (2, 2) of fp32, 16 bytes");
  expect(npy(good, body + "x"), "too long");
  expect(npy("{'descr': '<f8', 'fortran_order': False, 'shape': (2,), }", body), "type '<f8'");
  expect(npy("{'descr': '>f4', 'fortran_order': False, 'shape': (4,), }", body), "big-endian");
  expect(npy("{'descr': '|O', 'fortran_order': False, 'shape': (4,), }", body), "type '|O'");
  expect(npy("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (4,), }", body),
         "structured dtype");
  expect(npy("{'descr': '<f4', 'fortran_order': False, 'shape': (-4,), }", body),
         "negative extent -4");
  expect(npy("{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,), }", body),
         "does not fit 64 bits");
  expect(npy("{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296), }", body),
         "overflow 64 bits");
  expect(npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000,), }", body),
         "truncated");
  expect(npy("{'descr': '<f4', 'fortran_order': False, }", body), "without descr");
  expect(npy("{'descr': '<f4', 'descr': '<f4', 'shape': (4,), }", body), "repeated key");
  expect(npy("{'descr': '<f4', 'fortran_order': Maybe, 'shape': (4,), }", body), "neither True");
  expect(npy("not a dictionary", body), "malformed npy header");
}

TEST(Npy, WritesWhatItReads) {
  const TemporaryFolder folder;
  for (DType dtype : {DType::fp32, DType::fp16, DType::bf16}) {
    HostTensor tensor(dtype, {2, 1, 3});
    for (std::size_t i = 0; i < tensor.bytes.size(); ++i) tensor.bytes.data()[i] = std::byte(i);
    const std::string path = folder / "a.npy";
    AtomicFile file(path);
    write_npy(file, tensor);
    file.commit();
    FileSource source(path);
    EXPECT_EQ((source.size() - tensor.bytes.size()) % 64, 0u);
    const HostTensor again = read_npy(source);
    EXPECT_EQ(again.dtype, dtype);
    EXPECT_EQ(again.shape, tensor.shape);
    EXPECT_EQ(std::memcmp(again.bytes.data(), tensor.bytes.data(), tensor.bytes.size()), 0);
  }
  EXPECT_NE(read_file(folder / "a.npy").find("'descr': '<V2'"), std::string::npos);
}

}  // namespace
}  // namespace convoy::io
