#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <filesystem>
#include <set>

#include "cortado/base/error.h"
#include "cortado/base/files.h"
#include "cortado/base/json.h"
#include "cortado/base/utf8.h"
#include "cortado/data/text_stream.h"
#include "cortado/data/token_file.h"
#include "cortado/testing/errors.h"
#include "cortado/tokenizers/tokenizer.h"

namespace cortado {
namespace {

using testing::error_of;
using testing::kNoError;

namespace fs = std::filesystem;

std::string corpus() {
  const char* folder = std::getenv("CORTADO_SOURCE");
  return std::string(folder ? folder : ".") + "/data/tinyshakespeare.txt";
}

std::vector<int32_t> all_tokens(const TokenFile& file) {
  const at::Tensor tokens = file.read(0, file.size());
  return {tokens.data_ptr<int64_t>(), tokens.data_ptr<int64_t>() + file.size()};
}

std::string text_of(const Dataset& dataset, const std::shared_ptr<TokenFile>& file) {
  return dataset.tokenizer->decode(all_tokens(*file));
}

size_t entries(const std::string& directory) {
  return static_cast<size_t>(std::distance(fs::directory_iterator(directory), fs::directory_iterator()));
}

class Data : public ::testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& text) {
    write_file(folder_.path() + "/" + name, text);
    return folder_.path() + "/" + name;
  }
  std::string path(const std::string& name) const { return folder_.path() + "/" + name; }
  PrepareOptions options(const std::vector<std::string>& files, const std::string& tokenizer) const {
    return {.files = files, .tokenizer = tokenizer, .out = path("out"), .progress = false};
  }
  const TemporaryDirectory folder_;
};

TEST_F(Data, SplitsAsNanoGpt) {
  prepare_dataset(options({corpus()}, "char"));
  const Dataset dataset = open_dataset(path("out"));
  EXPECT_EQ(dataset.train->size(), 1003854);
  EXPECT_EQ(dataset.validation->size(), 111540);
  EXPECT_EQ(dataset.tokenizer->vocabulary(), 65);
  EXPECT_EQ(text_of(dataset, dataset.train) + text_of(dataset, dataset.validation), read_file(corpus()));
  EXPECT_EQ(fs::file_size(path("out") + "/train.tokens"), 48 + 1003856 * 2 + 8u) << "two bytes a token";
  EXPECT_EQ(entries(folder_.path()), 1u) << "temporary folders left";
}

TEST_F(Data, EveryTokenizerKeepsTheText) {
  std::string text;
  for (int i = 0; i < 3000; ++i) text += "línea " + std::to_string(i * 7919 % 1000) + " 拿铁 😀\n";
  const std::string file = write("t.txt", text);
  for (const std::string spec : {"byte", "char", "sentencepiece:320"}) {
    prepare_dataset(options({file}, spec));
    const Dataset dataset = open_dataset(path("out"));
    const std::string train = text_of(dataset, dataset.train), validation = text_of(dataset, dataset.validation);
    EXPECT_EQ(train + validation, text) << spec;
    EXPECT_EQ(utf8_valid_prefix(train), train.size()) << spec << ": a character is cut";
    EXPECT_NEAR(static_cast<double>(train.size()) / static_cast<double>(text.size()), 0.9, 0.001);
    const Dataset direct = open_text_as_dataset(options({file}, spec));
    EXPECT_EQ(all_tokens(*direct.train), all_tokens(*dataset.train)) << spec;
    EXPECT_EQ(all_tokens(*direct.validation), all_tokens(*dataset.validation)) << spec;
  }
}

TEST_F(Data, ByteTokenizerTakesAnyBytesAndCutsNoCharacter) {
  std::string bytes;
  for (int i = 0; i < 1000; ++i) bytes += static_cast<char>(i * 37);
  prepare_dataset(options({write("b.bin", bytes)}, "byte"));
  const Dataset dataset = open_dataset(path("out"));
  EXPECT_EQ(text_of(dataset, dataset.train) + text_of(dataset, dataset.validation), bytes);
  for (int lead = 0; lead < 4; ++lead) {
    const std::string text = std::string(static_cast<size_t>(lead), 'x') + "😀😀😀😀😀😀😀😀😀😀";
    const Dataset d = open_text_as_dataset(options({write("e.txt", text)}, "byte"));
    EXPECT_EQ((d.train->size() - lead) % 4, 0);
    EXPECT_EQ(d.train->size() + d.validation->size(), static_cast<int64_t>(text.size()));
  }
}

TEST_F(Data, DocumentsOfFilesAndSeparators) {
  const std::string a = write("a.txt", "one<|end|>two<|end|><|end|>three<|end|>"), b = write("b.txt", "<|end|>four");
  PrepareOptions with = options({a, b}, "char");
  with.document_separator = "<|end|>";
  with.validation = 0.25;  // 15 characters, 11 of them for training: "onetwothree" | "four"
  prepare_dataset(with);
  const Dataset dataset = open_dataset(path("out"));
  EXPECT_EQ(dataset.train->documents(), (std::vector<int64_t>{0, 3, 6}));
  EXPECT_EQ(text_of(dataset, dataset.train), "onetwothree");
  EXPECT_EQ(text_of(dataset, dataset.validation), "four");
  EXPECT_EQ(dataset.tokenizer->vocabulary(), 9) << "the separator's characters are not of the text";
  with.test = 0.25;  // 7 for training, 4 for validation, 4 for the test: "onetwot" | "hree" | "four"
  prepare_dataset(with);
  const Dataset three = open_dataset(path("out"));
  EXPECT_EQ(text_of(three, three.train), "onetwot");
  EXPECT_EQ(text_of(three, three.validation), "hree");
  EXPECT_EQ(read_file(path("out/test.txt")), "four");
  with.test = 0.75;
  EXPECT_NE(error_of([&] { prepare_dataset(with); }).find("test part"), std::string::npos);
  with.test = 0.6, with.validation = 0.1;  // 4 for training, 2 for validation, 9 for the test
  prepare_dataset(with);
  EXPECT_EQ(read_file(path("out/test.txt")), "three<|end|>four") << "documents stay apart";
  with.test = 0;
  with.validation = 0.5;
  const Dataset half = open_text_as_dataset(with);  // 7 for training: "onetwot" | "hree", "four"
  EXPECT_EQ(half.train->documents(), (std::vector<int64_t>{0, 3, 6}));
  EXPECT_EQ(half.validation->documents(), (std::vector<int64_t>{0, 4}));
  const Dataset files =
      open_text_as_dataset({.files = {b, a}, .tokenizer = "byte", .validation = 0, .progress = false});
  EXPECT_EQ(files.train->documents(), (std::vector<int64_t>{0, 11}));
  EXPECT_EQ(files.validation->size(), 0);
  EXPECT_TRUE(files.validation->documents().empty());
}

// Separators and characters across the bounds of reads.
TEST_F(Data, StreamsLongTexts) {
  std::string text, expected;
  std::vector<std::string> documents;
  for (int i = 0; text.size() < (3u << 20); ++i) {
    std::string document;
    for (int j = 0; j <= i % 50 * 40; ++j) document += j % 3 ? "wörd " : "x\n";
    if (i % 13 == 0) document = std::string(i % 26 == 0 ? 1500000 : 10, 'y') + "é";
    documents.push_back(document);
    text += document + "\n===\n";
  }
  const std::string file = write("long.txt", text);
  DocumentStream stream({file}, "\n===\n", false);
  DocumentStream::Piece piece;
  std::vector<std::string> found;
  while (stream.next(piece)) {
    ASSERT_FALSE(piece.text.empty());
    ASSERT_EQ(utf8_valid_prefix(piece.text), piece.text.size());
    if (piece.starts_document) found.emplace_back();
    found.back() += piece.text;
  }
  EXPECT_TRUE(found == documents);
  EXPECT_EQ(count_characters("aé拿😀"), 4);
  EXPECT_EQ(bytes_of_characters("aé拿😀", 2), 3u);
  EXPECT_EQ(bytes_of_characters("aé", 9), 3u);
}

TEST_F(Data, StreamsAreOfWholeCharacters) {
  std::string text;
  while (text.size() < (3 << 20)) text += "a\u00e9\u20ac\U0001F600";  // some cross the bounds of reads
  int64_t read = 0;
  const auto all = [&](const std::string& bytes) {
    DocumentStream stream({write("t.txt", bytes)}, "", false, [&](int64_t count) { read = count; });
    DocumentStream::Piece piece;
    std::string found;
    while (stream.next(piece)) {
      EXPECT_EQ(utf8_valid_prefix(piece.text), piece.text.size());
      found += piece.text;
    }
    return found;
  };
  EXPECT_EQ(all(text), text);
  EXPECT_EQ(read, static_cast<int64_t>(text.size()));
  const std::string place = "[" + path("t.txt") + "] ";
  const auto fails = [&](const std::string& bytes) { return error_of([&] { all(bytes); }); };
  EXPECT_EQ(fails(std::string("ab\0c", 4)),
            place + "is binary, not text: NUL byte at byte offset 2; only the byte tokenizer takes it");
  EXPECT_EQ(fails(text + "\xff"), place + "is not UTF-8: invalid byte 0xFF at byte offset " +
                                      std::to_string(text.size()) + "; only the byte tokenizer takes it");
  EXPECT_EQ(fails("ab\xE2\x82"),
            place + "is not UTF-8: a character is cut off at byte offset 2; only the byte tokenizer takes it");
  EXPECT_NE(error_of([&] {
              DocumentStream::Piece piece;
              DocumentStream({path("none")}, "", false).next(piece);
            }).find("cannot be read"),
            std::string::npos);
}

TEST_F(Data, AnExistingTokenizerIsUsed) {
  const std::string file = write("a.txt", "abcabcabcabc");
  const Dataset first = open_text_as_dataset(options({file}, "char"));
  const Dataset second = open_text_as_dataset(options({write("b.txt", "ccbbaaccbb")}, "byte"), first.tokenizer);
  EXPECT_EQ(second.tokenizer, first.tokenizer);
  EXPECT_EQ(second.train->vocabulary(), 3);
  const auto message =
      error_of([&] { open_text_as_dataset(options({write("c.txt", "abx")}, "byte"), first.tokenizer); });
  EXPECT_NE(message.find("unknown character 'x' (U+0078)"), std::string::npos) << message;
}

TEST_F(Data, BadTexts) {
  const auto fails = [&](const std::string& bytes, const std::string& spec) {
    const std::string message = error_of([&] { prepare_dataset(options({write("t.txt", bytes)}, spec)); });
    EXPECT_FALSE(fs::exists(path("out"))) << "something was written";
    EXPECT_EQ(entries(folder_.path()), 1u) << "temporary folders left";
    return message;
  };
  const std::string place = "[" + path("t.txt") + "] ";
  for (const std::string spec : {"char", "sentencepiece:300"}) {
    EXPECT_EQ(fails("ok\xff", spec),
              place + "is not UTF-8: invalid byte 0xFF at byte offset 2; only the byte tokenizer takes it");
    EXPECT_NE(fails(std::string("ok\0", 3), spec).find("is binary, not text: NUL byte at byte offset 2"),
              std::string::npos);
  }
  EXPECT_EQ(fails("", "byte"), place + "is empty: there is no text in it");
  EXPECT_EQ(fails("x", "byte"), place + "the text is too short: nothing is left to train on");
  EXPECT_NE(fails("text", "bytes").find("expected byte, char or sentencepiece:N"), std::string::npos);
  errno = 0;
  EXPECT_EQ(error_of([&] { prepare_dataset(options({path("none.txt")}, "byte")); }),
            "[" + path("none.txt") + "] cannot be read: No such file or directory");
  EXPECT_NE(error_of([&] { prepare_dataset(options({folder_.path()}, "byte")); }).find("is a folder"),
            std::string::npos);
  EXPECT_NE(error_of([&] { prepare_dataset(options({"/dev/zero"}, "byte")); }).find("not a regular file"),
            std::string::npos);
  EXPECT_NE(error_of([&] { prepare_dataset(options({}, "byte")); }).find("no text files"), std::string::npos);
  for (const double share : {-0.1, 1.0, std::nan("")}) {
    PrepareOptions bad = options({path("t.txt")}, "byte");
    bad.validation = share;
    EXPECT_NE(error_of([&] { prepare_dataset(bad); }).find("validation part"), std::string::npos);
  }
}

TEST_F(Data, OutputFolders) {
  const std::string file = write("t.txt", "some text to prepare");
  const auto prepare_to = [&](const std::string& out) {
    PrepareOptions o = options({file}, "byte");
    o.out = out;
    return error_of([&] { prepare_dataset(o); });
  };
  EXPECT_EQ(prepare_to(path("new/deep/")), kNoError);
  EXPECT_EQ(open_dataset(path("new/deep")).train->size(), 18);
  fs::create_directory(path("empty"));
  EXPECT_EQ(prepare_to(path("empty")), kNoError);
  write("t.txt", "other text");
  EXPECT_EQ(prepare_to(path("empty")), kNoError) << "a dataset is replaced";
  EXPECT_EQ(open_dataset(path("empty")).train->size(), 9);
  EXPECT_EQ(entries(folder_.path()), 3u) << "the old dataset is left somewhere";

  fs::create_symlink(path("empty"), path("link"));
  EXPECT_EQ(prepare_to(path("link")), kNoError);
  EXPECT_EQ(prepare_to(path("new/../empty/.")), kNoError);
  EXPECT_TRUE(fs::is_symlink(path("link")));
  EXPECT_EQ(entries(folder_.path()), 4u);

  write("empty/mine.txt", "precious");
  EXPECT_NE(prepare_to(path("empty")).find("in use: it has files that are not a dataset's (mine.txt)"),
            std::string::npos);
  EXPECT_EQ(read_file(path("empty/mine.txt")), "precious");
  fs::create_directory(path("used"));
  write("used/train.tokens", "not known to be ours");
  EXPECT_NE(prepare_to(path("used")).find("in use"), std::string::npos);
  EXPECT_NE(prepare_to(file).find("a file of that name exists"), std::string::npos);
  EXPECT_NE(prepare_to(file + "/below"), kNoError);
  EXPECT_NE(prepare_to("/proc/cortado").find("/proc"), std::string::npos);
  EXPECT_NE(prepare_to(""), kNoError);
}

TEST_F(Data, FullDiskLeavesNothing) {
  write("t.txt", std::string(1 << 20, 'x'));
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{1 << 19, before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  std::string message;
  try {
    prepare_dataset(options({path("t.txt")}, "byte"));
  } catch (const Failure& failure) {
    message = failure.what();
  }
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_NE(message.find("cannot be written: File too large"), std::string::npos) << message;
  EXPECT_EQ(entries(folder_.path()), 1u);
}

TEST_F(Data, WideTokensAndBounds) {
  TokenFileWriter writer(path("wide.tokens"), 100000);
  writer.append({});
  writer.append({1, 99999});
  writer.start_document();
  writer.start_document();
  writer.append({70000});
  writer.finish();
  const auto file = TokenFile::open(path("wide.tokens"));
  EXPECT_EQ(all_tokens(*file), (std::vector<int32_t>{1, 99999, 70000}));
  EXPECT_EQ(file->documents(), (std::vector<int64_t>{0, 2}));
  EXPECT_EQ(file->read(1, 1).item<int64_t>(), 99999);
  EXPECT_EQ(file->read(3, 0).numel(), 0);
  EXPECT_THROW(file->read(2, 2), InputError);
  EXPECT_THROW(file->read(-1, 1), InputError);
  EXPECT_THROW(file->read(1, std::numeric_limits<int64_t>::max()), InputError);
}

TEST_F(Data, BrokenTokenFiles) {
  TokenFileWriter writer(path("good.tokens"), 300);
  for (int i = 0; i < 5; ++i) {
    writer.start_document();
    writer.append({i, 299, 7});
  }
  writer.finish();
  const std::string good = read_file(path("good.tokens"));
  const auto opening = [&](const std::string& bytes) {
    return error_of([&] {
      const auto file = TokenFile::open(write("bad.tokens", bytes));
      file->read(0, file->size());
    });
  };
  EXPECT_EQ(opening(good), kNoError);
  EXPECT_NE(opening("").find("too short"), std::string::npos);
  EXPECT_NE(opening(std::string(1000, 'x')).find("is not a token file"), std::string::npos);
  for (size_t length = 1; length < good.size(); length += 7) EXPECT_NE(opening(good.substr(0, length)), kNoError);
  EXPECT_NE(opening(good.substr(0, good.size() - 1)).find("is truncated"), std::string::npos);
  EXPECT_NE(opening(good + "x").find("is damaged"), std::string::npos);
  for (size_t byte = 0; byte < 48; byte += 3) {
    std::string flipped = good;
    flipped[byte] ^= 1;
    EXPECT_NE(opening(flipped), kNoError) << "header byte " << byte;
  }
  std::string token = good;
  token[48 + 3] ^= 2;  // 299 -> 811
  EXPECT_NE(opening(token).find("token 811 at 1 is not in the vocabulary of 300"), std::string::npos);
  std::string offsets = good;
  offsets[good.size() - 8] = 1;
  EXPECT_NE(opening(offsets).find("offsets of the documents"), std::string::npos);
}

TEST_F(Data, BrokenDatasets) {
  const std::string file = write("t.txt", "some text to prepare, long enough");
  EXPECT_NE(error_of([&] { open_dataset(path("none")); }).find("not a folder made by `cortado prepare`"),
            std::string::npos);
  EXPECT_NE(error_of([&] { open_dataset(folder_.path()); }).find("dataset.json] cannot be read"), std::string::npos);
  prepare_dataset(options({file}, "char"));
  const std::string good = read_file(path("out/dataset.json"));
  write("out/dataset.json", "{}");
  EXPECT_THROW(open_dataset(path("out")), InputError);
  Json json = parse_json(good, "good");
  json["train"]["tokens"] = 5;
  write("out/dataset.json", json.dump());
  EXPECT_NE(error_of([&] { open_dataset(path("out")); }).find("train.tokens] does not belong to"), std::string::npos);
  write("out/dataset.json", good);
  EXPECT_EQ(error_of([&] { open_dataset(path("out")); }), kNoError);
  std::string tokens = read_file(path("out/train.tokens"));
  tokens[48] ^= 1;  // another token of the vocabulary
  write("out/train.tokens", tokens);
  EXPECT_NE(error_of([&] { open_dataset(path("out")); }).find("train.tokens] is damaged: its checksum"),
            std::string::npos);
  json = parse_json(good, "good");
  json["train"].erase("checksum");  // a dataset of an earlier version
  write("out/dataset.json", json.dump());
  EXPECT_EQ(error_of([&] { open_dataset(path("out")); }), kNoError);
  tokens[48] ^= 1;
  write("out/train.tokens", tokens);
  write("out/dataset.json", good);
  make_tokenizer("byte", {})->save(path("out/tokenizer"));
  EXPECT_NE(error_of([&] { open_dataset(path("out")); }).find("tokenizer] does not belong to"), std::string::npos);
  fs::remove(path("out/validation.tokens"));
  EXPECT_NE(error_of([&] { open_dataset(path("out")); }).find("validation.tokens] cannot be read"), std::string::npos);
}

}  // namespace
}  // namespace cortado
