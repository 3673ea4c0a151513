#include "cortado/base/files.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include "cortado/base/error.h"
#include "cortado/base/signals.h"

namespace cortado {
namespace {

namespace fs = std::filesystem;

size_t entries(const std::string& directory) {
  return static_cast<size_t>(std::distance(fs::directory_iterator(directory), fs::directory_iterator()));
}

TEST(Files, WriteReadReplace) {
  const TemporaryDirectory folder;
  const std::string path = folder.path() + "/a.bin";
  const std::string bytes("zero\0byte\xff\n", 11);
  write_file(path, bytes);
  EXPECT_EQ(read_file(path), bytes);
  write_file(path, "");
  EXPECT_EQ(read_file(path), "");
  EXPECT_EQ(entries(folder.path()), 1u) << "temporary files left";
}

TEST(Files, PiecewiseWithHeaderWrittenLast) {
  const TemporaryDirectory folder;
  const std::string path = folder.path() + "/big";
  std::string expected(16, '?');
  {
    AtomicFile file(path);
    file.write("????????????????");
    for (int i = 0; i < 5000; ++i) {
      const std::string piece(static_cast<size_t>(i) % 997, static_cast<char>('a' + i % 26));
      file.write(piece);
      expected += piece;
    }
    const std::string large(3 << 20, 'L');
    file.write(large);
    expected += large;
    EXPECT_EQ(file.size(), expected.size());
    file.overwrite(4, "HEAD");
    EXPECT_THROW(file.overwrite(expected.size() - 1, "xx"), Failure);
    EXPECT_FALSE(fs::exists(path)) << "seen before commit";
    file.commit();
  }
  expected.replace(4, 4, "HEAD");
  EXPECT_EQ(read_file(path), expected);
}

TEST(Files, WithoutCommitNothingChanges) {
  const TemporaryDirectory folder;
  const std::string path = folder.path() + "/kept";
  write_file(path, "old");
  {
    AtomicFile file(path);
    file.write("new");
  }
  EXPECT_EQ(read_file(path), "old");
  EXPECT_EQ(entries(folder.path()), 1u);
}

TEST(Files, FullDiskIsAFailureAndKeepsTheOldFile) {
  const TemporaryDirectory folder;
  const std::string path = folder.path() + "/kept";
  write_file(path, "old");
  // A limit on the file size stands in for a full disk: write() fails half-way in both cases.
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{1 << 20, before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  std::string message;
  try {
    write_file(path, std::string(4 << 20, 'x'));
  } catch (const Failure& failure) {
    message = failure.what();
  }
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(message, "[" + path + "] cannot be written: File too large");
  EXPECT_EQ(read_file(path), "old");
  EXPECT_EQ(entries(folder.path()), 1u);
}

// A killed process leaves files and folders without a lock.
TEST(Files, LeftoversOfKilledProcessesGo) {
  const TemporaryDirectory folder;
  const std::string path = folder.path() + "/kept";
  write_file(path + ".tmp-12345-0", "half");
  write_file(path + ".tmp-notes", "somebody's");
  write_file(folder.path() + "/other.tmp-12345-0", "of another file");
  AtomicFile living(path);
  write_file(path, "new");
  EXPECT_EQ(read_file(path), "new");
  EXPECT_EQ(entries(folder.path()), 4u);  // the leftover is gone, the living one is not
  living.write("newer");
  living.commit();
  EXPECT_EQ(read_file(path), "newer");
  EXPECT_EQ(entries(folder.path()), 3u);
}

TEST(Files, LeftoverFoldersOfKilledProcessesGo) {
  const TemporaryDirectory folder;
  const auto make = [&](const std::string& name) {
    std::filesystem::create_directories(folder.path() + "/" + name + "/inside");
    write_file(folder.path() + "/" + name + "/inside/file", "half");
  };
  make(".cortado-work-abcdef");
  make(".cortado-work-not-ours");
  const TemporaryDirectory first(folder.path(), ".cortado-work-");
  const TemporaryDirectory second(folder.path(), ".cortado-work-");
  EXPECT_EQ(entries(folder.path()), 3u);
  EXPECT_TRUE(std::filesystem::exists(first.path()));
  make("visible-abcdef");
  const TemporaryDirectory third(folder.path(), "visible-");
  EXPECT_EQ(entries(folder.path()), 5u);
}

TEST(Files, WritingWhereNothingCanBe) {
  const TemporaryDirectory folder;
  EXPECT_THROW(write_file(folder.path() + "/no/such/folder", "x"), Failure);
  EXPECT_THROW(write_file(folder.path(), "x"), Failure);
  EXPECT_EQ(entries(folder.path()), 0u);
}

TEST(Files, ReadingWhatIsNotThere) {
  const TemporaryDirectory folder;
  EXPECT_THROW(read_file(folder.path() + "/missing"), InputError);
  EXPECT_THROW(read_file(folder.path()), InputError);
  EXPECT_THROW(MappedFile(folder.path() + "/missing"), InputError);
  EXPECT_THROW(MappedFile(folder.path()), InputError);
}

TEST(Files, Mapped) {
  const TemporaryDirectory folder;
  write_file(folder.path() + "/m", "mapped");
  const MappedFile file(folder.path() + "/m");
  file.expect_sequential();
  EXPECT_EQ(file.text(), "mapped");
  write_file(folder.path() + "/empty", "");
  EXPECT_EQ(MappedFile(folder.path() + "/empty").text(), "");
}

TEST(Files, ClaimOutputDirectory) {
  const TemporaryDirectory folder;
  const std::string deep = folder.path() + "/a/b";
  claim_output_directory(deep, true);
  EXPECT_TRUE(is_writable_directory(deep));
  claim_output_directory(deep, true);
  write_file(deep + "/file", "x");
  EXPECT_THROW(claim_output_directory(deep, true), InputError);
  claim_output_directory(deep, false);
  EXPECT_THROW(claim_output_directory(deep + "/file", false), InputError);
  EXPECT_THROW(claim_output_directory(deep + "/file/below", false), InputError);
  EXPECT_THROW(claim_output_directory("", false), InputError);
  EXPECT_FALSE(is_writable_directory(deep + "/file"));
  EXPECT_FALSE(is_writable_directory("/proc/self/no"));
  EXPECT_THROW(claim_output_directory("/proc/cortado", false), InputError);
}

TEST(Files, TemporaryDirectoryGoes) {
  std::string path;
  {
    const TemporaryDirectory folder;
    path = folder.path();
    write_file(path + "/x", "x");
  }
  EXPECT_FALSE(fs::exists(path));
}

TEST(Signals, FirstAsksSecondEnds) {
  const pid_t child = fork();
  if (child == 0) {
    catch_interrupts();
    if (interrupt_requested()) _exit(1);
    raise(SIGINT);
    if (!interrupt_requested() || interrupt_exit_code() != 130) _exit(2);
    raise(SIGTERM);
    _exit(3);
  }
  int status = 0;
  waitpid(child, &status, 0);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 128 + SIGTERM);
}

}  // namespace
}  // namespace cortado
