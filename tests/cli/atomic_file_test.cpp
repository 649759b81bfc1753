// SPDX-License-Identifier: Apache-2.0
#include "io/atomic_file.hpp"

#include <sys/stat.h>

#include <csignal>
#include <functional>

#include "io/byte_source.hpp"
#include "io/tensor_file.hpp"
#include "memory_file.hpp"

namespace convoy::io {
namespace {

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(AtomicFile, AppearsOnCommitOnly) {
  const TemporaryFolder folder;
  {
    AtomicFile file(folder / "a");
    file.write("abc", 3);
    EXPECT_FALSE(std::filesystem::exists(folder / "a"));
  }
  EXPECT_EQ(folder.files(), 0u);
  {
    AtomicFile file(folder / "a");
    file.write("abc", 3);
    file.commit();
  }
  EXPECT_EQ(read_file(folder / "a"), "abc");
  EXPECT_EQ(folder.files(), 1u);
}

// A file that cannot be looked at is not an absent one, which would be written anew without what
// the old one holds.
TEST(ReadIfThere, TellsAnAbsentFileFromAnUnreadableOne) {
  const TemporaryFolder folder;
  EXPECT_EQ(read_if_there(folder / "a"), std::nullopt);
  EXPECT_EQ(read_if_there(folder / "no folder/a"), std::nullopt);
  std::ofstream(folder / "a") << "abc";
  EXPECT_EQ(read_if_there(folder / "a"), "abc");
  EXPECT_EQ(read_if_there(folder / "a/b"), std::nullopt);
  std::filesystem::create_symlink("loop", folder / "loop");
  for (const std::string& path : {folder / "loop", folder / std::string(300, 'x')}) {
    const std::string error = error_of([&] { read_if_there(path); });
    EXPECT_NE(error.find(path + ": cannot read: "), error.npos) << error;
  }
}

TEST(AtomicFile, LeavesTheOldFileWhereTheNewOneFails) {
  const TemporaryFolder folder;
  std::ofstream(folder / "a") << "old";
  {
    AtomicFile file(folder / "a");
    file.write("new", 3);
  }
  EXPECT_EQ(read_file(folder / "a"), "old");
  AtomicFile file(folder / "a");
  file.write("new", 3);
  file.commit();
  EXPECT_EQ(read_file(folder / "a"), "new");
}

TEST(AtomicFile, WritesAWholeFile) {
  const TemporaryFolder folder;
  std::ofstream(folder / "a") << "something longer";
  write_file(folder / "a", "new");
  EXPECT_EQ(read_file(folder / "a"), "new");
  EXPECT_EQ(folder.files(), 1u);
}

TEST(AtomicFile, HasTheRightsOfAnOrdinaryFile) {
  const TemporaryFolder folder;
  std::ofstream(folder / "plain") << "x";
  AtomicFile file(folder / "a");
  file.commit();
  struct stat plain {
  }, atomic{};
  ASSERT_EQ(stat((folder / "plain").c_str(), &plain), 0);
  ASSERT_EQ(stat((folder / "a").c_str(), &atomic), 0);
  EXPECT_EQ(atomic.st_mode, plain.st_mode);
}

TEST(AtomicFile, NamesWhyItCannotWrite) {
  const TemporaryFolder folder;
  EXPECT_NE(error_of([&] { AtomicFile(folder / "no/such/a"); }).find("there is no folder"),
            std::string::npos);
  std::filesystem::create_directory(folder / "sub");
  EXPECT_NE(error_of([&] { AtomicFile(folder / "sub"); }).find("it is a folder"),
            std::string::npos);
}

TEST(AtomicFile, IsGoneAfterASignal) {
  const TemporaryFolder folder;
  EXPECT_EXIT(
      {
        AtomicFile file(folder / "a");
        file.write("abc", 3);
        raise(SIGTERM);
      },
      testing::KilledBySignal(SIGTERM), "");
  EXPECT_EQ(folder.files(), 0u);
}

TEST(FileSource, RefusesWhatIsNotAFile) {
  const TemporaryFolder folder;
  EXPECT_NE(error_of([&] { FileSource(folder / "none"); }).find("cannot open: No such file"),
            std::string::npos);
  EXPECT_NE(error_of([&] { FileSource(folder / ""); }).find("is not a regular file"),
            std::string::npos);
  EXPECT_NE(error_of([&] { FileSource("/dev/zero"); }).find("is not a regular file"),
            std::string::npos);
}

TEST(TensorFile, NamesTheKindsItKnows) {
  EXPECT_NE(error_of([] { read_tensor("a.tiff"); }).find("supported: .npy"), std::string::npos);
}

}  // namespace
}  // namespace convoy::io
