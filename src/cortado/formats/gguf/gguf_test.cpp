// GGUF: valid files are read, and each kind of damage is refused with a message of one line.
#include "cortado/testing/gguf.h"

#include <gtest/gtest.h>

#include "cortado/base/error.h"
#include "cortado/formats/gguf/file.h"

namespace cortado {
namespace {

GgufBuilder small_gguf() {
  GgufBuilder file;
  file.add("general.architecture", "llama");
  file.add("llama.block_count", 3);
  file.add("llama.rope.freq_base", 0.5);
  file.add("tokenizer.ggml.tokens", std::vector<std::string>{"a", "", "\xFF"});
  return file;
}

void expect_refused(const std::string& bytes, const std::string& words) {
  try {
    const GgufFile file(bytes, "x.gguf");
    ADD_FAILURE() << "accepted: " << words;
  } catch (const InputError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find(words), std::string::npos) << text;
    EXPECT_EQ(text.find("[gguf] x.gguf "), 0u) << text;
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
  }
}

TEST(Gguf, ReadsMetadataAndTensors) {
  for (const uint32_t version : {2u, 3u}) {
    GgufBuilder builder = small_gguf();
    std::string floats;
    for (int i = 0; i < 6; ++i) GgufBuilder::put(floats, static_cast<float>(i));
    builder.tensor("x", {2, 3}, 0, floats);
    builder.tensor("y", {1, 2}, 30, floats.substr(0, 4));
    const std::string bytes = builder.file(version);
    const GgufFile file(bytes, "x.gguf");
    EXPECT_EQ(file.metadata().text("general.architecture"), "llama");
    EXPECT_EQ(file.metadata().integer("llama.block_count", 1, 9), 3);
    EXPECT_EQ(file.metadata().number("llama.rope.freq_base", 0, 1), 0.5);
    EXPECT_EQ(file.metadata().number("llama.block_count", 0, 9), 3.0);
    EXPECT_EQ(file.texts("tokenizer.ggml.tokens"), (std::vector<std::string_view>{"a", "", "\xFF"}));
    EXPECT_TRUE(file.texts("none").empty());
    EXPECT_EQ(file.metadata().integer("none", 1, 9, 7), 7);
    EXPECT_THROW(file.metadata().integer("none", 1, 9), InputError);
    EXPECT_THROW(file.metadata().integer("llama.block_count", 4, 9), InputError);
    EXPECT_THROW(file.metadata().integer("tokenizer.ggml.tokens", 0, 9), InputError);
    EXPECT_THROW(file.metadata().text("llama.block_count"), InputError);
    EXPECT_THROW(file.texts("llama.block_count"), InputError);
    ASSERT_NE(file.find("x"), nullptr);
    EXPECT_TRUE(GgufFile::read(*file.find("x")).equal(at::arange(6, at::kFloat).view({2, 3})));
    EXPECT_EQ(GgufFile::read(*file.find("y")).scalar_type(), at::kBFloat16);
    EXPECT_EQ(file.find("z"), nullptr);
  }
}

TEST(Gguf, DecodesABlockByItsFormula) {
  // Q4_1 with d = 0.5, m = -1: values 0, 1, 2, ... in the low halves, 15 in all high halves.
  std::string block;
  GgufBuilder::put(block, c10::Half(0.5).x);
  GgufBuilder::put(block, c10::Half(-1.0).x);
  for (int i = 0; i < 16; ++i) block += static_cast<char>(i | 0xF0);
  const Tensor y = decode_ggml(*find_ggml_type(3), {32}, block);
  EXPECT_TRUE(y.slice(0, 0, 16).equal(at::arange(16, at::kFloat) * 0.5 - 1));
  EXPECT_TRUE(y.slice(0, 16).equal(at::full({16}, 6.5)));
}

TEST(Gguf, RefusesWhatIsNoGguf) {
  const std::string good = small_gguf().file();
  expect_refused("", "it does not begin with");
  expect_refused("GGML" + good.substr(4), "it does not begin with");
  expect_refused(small_gguf().file(1), "is of GGUF version 1; versions 2 and 3 are supported");
  for (size_t length = 4; length + 32 < good.size(); length += 3) expect_refused(good.substr(0, length), "is damaged");
}

TEST(Gguf, RefusesCountsAndLengthsThatTheFileCannotHold) {
  const std::string good = small_gguf().file();
  for (const uint64_t absurd : {uint64_t{1} << 31, uint64_t{1} << 62, ~uint64_t{0}}) {
    std::string number;
    GgufBuilder::put(number, absurd);
    for (const size_t place : {8u, 16u, 24u}) {  // number of tensors, number of entries, length of the first key
      std::string bad = good;
      expect_refused(bad.replace(place, 8, number), "is damaged");
    }
    GgufBuilder list;
    list.add("x", std::vector<std::string>{"y"});
    std::string bad = list.file();
    expect_refused(bad.replace(24 + 9 + 8, 8, number), "a list of");
  }
  GgufBuilder twice = small_gguf();
  twice.add("llama.block_count", 3);
  expect_refused(twice.file(), "\"llama.block_count\" appears twice");
}

TEST(Gguf, RefusesTensorsThatAreNotThere) {
  const std::string data(64, '\0');
  const auto with = [&](const std::vector<int64_t>& shape, uint32_t type, std::optional<uint64_t> offset) {
    GgufBuilder file = small_gguf();
    file.tensor("first", {16}, 0, data);
    file.tensor("bad", shape, type, data, offset);
    return file.file();
  };
  EXPECT_NO_THROW(GgufFile(with({16}, 0, {}), "x.gguf"));
  expect_refused(with({16}, 0, 32), "\"bad\" overlaps the one before it");
  expect_refused(with({16}, 0, 96), "\"bad\" needs bytes 96 to 160 of 128");
  expect_refused(with({16}, 0, ~uint64_t{31}), "\"bad\" needs bytes");
  expect_refused(with({16}, 0, 65), "starts at byte 65, which is no multiple of 32");
  expect_refused(with({0}, 0, {}), "impossible size");
  expect_refused(with({int64_t{1} << 40, int64_t{1} << 40}, 0, {}), "impossible size");
  expect_refused(with({1, 1, 1, 1, 1}, 0, {}), "5 dimensions");
  expect_refused(with({48}, 2, {}), "rows of 48 values, Q4_0 needs a multiple of 32");
  expect_refused(with({256}, 16, {}),
                 "\"bad\" of type IQ2_XXS, which is not supported; supported: F32, F16, BF16, Q8_0");
  expect_refused(with({256}, 99, {}), "has type 99");
  GgufBuilder twice;
  twice.tensor("x", {16}, 0, data);
  twice.tensor("x", {16}, 0, data);
  expect_refused(twice.file(), "tensor \"x\" appears twice");
  GgufBuilder aligned = small_gguf();
  aligned.add("general.alignment", 24);
  expect_refused(aligned.file(), "its alignment is 24, which is no power of two");
}

}  // namespace
}  // namespace cortado
