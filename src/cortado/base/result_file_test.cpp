#include "cortado/base/result_file.h"

#include <gtest/gtest.h>

#include <functional>

#include "cortado/base/error.h"
#include "cortado/base/files.h"

namespace cortado::result_file_test {

std::string message(const std::function<void()>& work) {
  try {
    work();
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

TEST(ResultFile, GoesOnWhereItStopped) {
  const TemporaryDirectory folder;
  const std::string path = folder.path() + "/results.jsonl";
  {
    ResultFile file(path);
    file.require("seed", 42);
    file.append({{{"index", 0}}, {{"index", 1}}});
  }
  const std::string whole = read_file(path);
  EXPECT_EQ(whole, "{\"setting\":\"seed\",\"value\":42}\n{\"index\":0}\n{\"index\":1}\n");
  {
    ResultFile file(path);
    file.require("seed", 42);
    ASSERT_EQ(file.results().size(), 2u);
    EXPECT_EQ(file.results()[1].at("index"), 1);
    file.append({{{"index", 2}}});
  }
  EXPECT_EQ(read_file(path), whole + "{\"index\":2}\n");
}

TEST(ResultFile, RefusesOtherSettings) {
  const TemporaryDirectory folder;
  const std::string path = folder.path() + "/results.jsonl";
  ResultFile(path).require("seed", 42);
  ResultFile file(path);
  const std::string said = message([&] { file.require("seed", 7); });
  EXPECT_NE(said.find("seed 42, not 7"), std::string::npos) << said;
  file.require("haystack", "new");
  EXPECT_EQ(message([&] { file.require("haystack", "new"); }), "");
}

TEST(ResultFile, AnUnfinishedLineIsCutOff) {
  const TemporaryDirectory folder;
  const std::string path = folder.path() + "/results.jsonl";
  const std::string whole = "{\"setting\":\"seed\",\"value\":1}\n{\"index\":0}\n";
  for (const char* rest : {"{", "{\"index\":1", "{\"index\":1}"}) {
    write_file(path, whole + rest);
    ResultFile file(path);
    EXPECT_EQ(file.results().size(), 1u) << rest;
    file.append({{{"index", 1}}});
    EXPECT_EQ(read_file(path), whole + "{\"index\":1}\n");
  }
}

TEST(ResultFile, OtherFilesAreNotTouched) {
  const TemporaryDirectory folder;
  const std::string path = folder.path() + "/notes.txt";
  for (const char* text : {"my notes", "my notes\n", "{\"loss\": 1}", "{\"loss\": 1}\n", "[1]\n", "{\"setting\": 3}\n",
                           "{\"setting\":3}\n"}) {
    write_file(path, text);
    EXPECT_NE(message([&] { ResultFile file(path); }).find("notes.txt"), std::string::npos) << text;
    EXPECT_EQ(read_file(path), text);
  }
  EXPECT_NE(message([&] { ResultFile file(folder.path()); }), "");
}

TEST(ResultFile, OneWriterAtATime) {
  const TemporaryDirectory folder;
  const std::string path = folder.path() + "/results.jsonl";
  const ResultFile first(path);
  EXPECT_NE(message([&] { ResultFile second(path); }).find("another program"), std::string::npos);
}

TEST(ResultFile, WithoutAPathItOnlyRemembers) {
  ResultFile file("");
  file.require("seed", 1);
  EXPECT_NE(message([&] { file.require("seed", 2); }), "");
  file.append({{{"index", 0}}});
  EXPECT_EQ(file.results().size(), 1u);
}

}  // namespace cortado::result_file_test
