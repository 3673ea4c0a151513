// Safetensors and state files: round trips, and every kind of damage.
#include "cortado/base/files.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>

#include "cortado/base/error.h"
#include "cortado/formats/safetensors.h"
#include "cortado/nn/state.h"

namespace cortado {
namespace {

using at::Tensor;

TensorFile small_file() {
  TensorFile file;
  file.tensors = {{"weight", at::randn({2, 3})}, {"empty", at::zeros({0, 4})}, {"count", at::arange(3, at::kLong)}};
  file.metadata = {{"step", "12"}, {"note", "ä \"quoted\""}};
  return file;
}

bool same(const TensorFile& a, const TensorFile& b) {
  if (a.tensors.size() != b.tensors.size()) return false;
  for (size_t i = 0; i < a.tensors.size(); ++i) {
    if (a.tensors[i].first != b.tensors[i].first) return false;
    if (a.tensors[i].second.scalar_type() != b.tensors[i].second.scalar_type()) return false;
    if (!a.tensors[i].second.equal(b.tensors[i].second)) return false;
  }
  return true;
}

// A safetensors file made by hand: header and data as given.
std::string raw(const std::string& header, const std::string& data) {
  const uint64_t length = header.size();
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  return bytes + header + data;
}

// write_file without its flush to disk, because the tests write thousands of damaged files.
void write_quickly(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

class Files : public ::testing::Test {
 protected:
  std::string path(const std::string& name) const { return directory_.path() + "/" + name; }
  void expect_refused(const std::string& bytes, const std::string& words) const {
    write_quickly(path("bad"), bytes);
    try {
      read_safetensors(path("bad"));
      ADD_FAILURE() << "accepted: " << words;
    } catch (const InputError& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find(words), std::string::npos) << text;
      EXPECT_NE(text.find(path("bad")), std::string::npos) << text;
      EXPECT_EQ(text.find('\n'), std::string::npos) << text;
    }
  }
  TemporaryDirectory directory_;
};

using Safetensors = Files;
using States = Files;

TEST_F(Safetensors, RoundTripsEveryType) {
  TensorFile file = small_file();
  for (const auto type : {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16, at::kLong, at::kInt, at::kShort, at::kChar,
                          at::kByte, at::kBool}) {
    file.tensors.emplace_back(c10::toString(type), (at::rand({3, 2}) * 100).to(type));
  }
  file.tensors.emplace_back("strided", at::randn({4, 3}).t());
  file.tensors.emplace_back("scalar", at::tensor(3.5));
  write_safetensors(path("a"), file);
  const TensorFile read = read_safetensors(path("a"));
  EXPECT_TRUE(same(file, read));
  EXPECT_EQ(read.metadata.at("note"), file.metadata.at("note"));
  EXPECT_EQ(read.metadata.at("checksum").size(), 16u);
}

TEST_F(Safetensors, WritesTheSameBytesAgain) {
  const TensorFile file = small_file();
  write_safetensors(path("a"), file);
  write_safetensors(path("b"), read_safetensors(path("a")));
  EXPECT_EQ(read_file(path("a")), read_file(path("b")));
}

TEST_F(Safetensors, FindsEveryFlippedBit) {
  const TensorFile file = small_file();
  write_safetensors(path("a"), file);
  const std::string good = read_file(path("a"));
  int refused = 0;
  for (size_t bit = 0; bit < good.size() * 8; ++bit) {
    std::string bad = good;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << (bit % 8)));
    write_quickly(path("bad"), bad);
    try {
      // Only a damaged name of the checksum itself can pass, and then the tensors are right.
      EXPECT_TRUE(same(read_safetensors(path("bad")), file)) << "bit " << bit;
    } catch (const InputError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, static_cast<int>(good.size()) * 8 - 80);
}

TEST_F(Safetensors, FindsEveryTruncation) {
  write_safetensors(path("a"), small_file());
  const std::string good = read_file(path("a"));
  for (size_t size = 0; size < good.size(); ++size) {
    write_quickly(path("bad"), good.substr(0, size));
    EXPECT_THROW(read_safetensors(path("bad")), InputError) << size;
  }
  expect_refused(good + "x", "the tensors end at byte");
}

TEST_F(Safetensors, RefusesLyingHeaders) {
  const std::string eight(8, 'x');
  expect_refused(raw(R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})", eight), "needs 12 bytes and has 8");
  expect_refused(raw(R"({"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}})", eight), "ends at byte 16 of 8");
  expect_refused(raw(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", eight), "starts at byte 4");
  expect_refused(raw(R"({"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})", eight), "no valid shape");
  expect_refused(raw(R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8]}})", eight),
                 "too large");
  expect_refused(raw(R"({"a":{"dtype":"F4","shape":[2],"data_offsets":[0,8]}})", eight), "unknown type");
  expect_refused(raw(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})", eight), "ends at byte 0");
  expect_refused(raw(R"({"a":{"dtype":"F32","shape":[2]}})", eight), "needs exactly");
  expect_refused(raw(R"({"a":3})", eight), "needs exactly");
  expect_refused(raw(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
                     R"("b":{"dtype":"U8","shape":[5],"data_offsets":[3,8]}})",
                     eight),
                 "starts at byte 3");
  expect_refused(raw(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
                     R"("a":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})",
                     eight),
                 "key \"a\" appears twice");
  expect_refused(raw(R"({"__metadata__":{"step":3}})", ""), "no text");
  expect_refused(raw("[1]", ""), "no JSON object");
  expect_refused(raw("{", ""), "line 1, column 2: not valid JSON");
  expect_refused(std::string(8, '\xff') + eight, "a header of");
  expect_refused("", "only 0 bytes");
}

TEST_F(Safetensors, ReadsForeignFilesInAnyOrder) {
  write_quickly(path("a"), raw(R"({"b":{"dtype":"U8","shape":[1],"data_offsets":[3,4]},)"
                               R"("a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}}   )",
                               "abcd"));
  const TensorFile file = read_safetensors(path("a"));
  ASSERT_EQ(file.tensors.size(), 2u);
  EXPECT_EQ(file.tensors[0].first, "a");
  EXPECT_EQ(file.tensors[1].second.item<int64_t>(), 'd');
}

TEST_F(Safetensors, RefusesToWriteWhatTheFormatLacks) {
  EXPECT_THROW(write_safetensors(path("a"), {{{"a", at::zeros({1}, at::kComplexFloat)}}, {}}), Failure);
  EXPECT_THROW(write_safetensors(path("a"), {{{"a", at::zeros({1})}, {"a", at::zeros({1})}}, {}}), Failure);
  EXPECT_THROW(write_safetensors(path("no/such/folder"), small_file()), std::runtime_error);
}

TEST_F(Safetensors, ContentHashSeesNameTypeShapeAndBytes) {
  const Tensor x = at::zeros({2, 2});
  const std::string hash = content_hash({{"a", x}});
  EXPECT_EQ(hash, content_hash({{"a", x.clone()}}));
  EXPECT_NE(hash, content_hash({{"b", x}}));
  EXPECT_NE(hash, content_hash({{"a", x.view({4})}}));
  EXPECT_NE(hash, content_hash({{"a", x.to(at::kInt)}}));
  EXPECT_NE(hash, content_hash({{"a", at::ones({2, 2})}}));
}

SequenceState small_state() {
  SequenceState state("latte");
  state.add("scan", at::randn({3, 2, 4}));
  state.add("length", at::arange(3, at::kLong));
  return state;
}

TEST_F(States, CarryNamedTensors) {
  SequenceState state = small_state();
  EXPECT_EQ(state.rows(), 3);
  EXPECT_EQ(state.bytes(), 3 * 2 * 4 * 4 + 3 * 8);
  EXPECT_THROW(state.at("nothing"), InputError);
  EXPECT_THROW(state.add("scan", at::zeros({3})), InputError);
  EXPECT_THROW(state.add("more", at::zeros({2})), InputError);
  const SequenceState copy = state.clone();
  state.at("scan").zero_();
  EXPECT_GT(copy.at("scan").abs().sum().item<float>(), 0);
  const SequenceState picked = copy.index(at::tensor({2, 0, 2, 2}, at::kLong));
  EXPECT_TRUE(picked.at("length").equal(at::tensor({2, 0, 2, 2}, at::kLong)));
  EXPECT_TRUE(picked.at("scan")[1].equal(copy.at("scan")[0]));
  const SequenceState wide = copy.to(at::kDouble);
  EXPECT_EQ(wide.at("scan").scalar_type(), at::kDouble);
  EXPECT_EQ(wide.at("length").scalar_type(), at::kLong);
  EXPECT_EQ(wide.mechanism(), "latte");
}

TEST_F(States, RoundTripThroughAFile) {
  const std::vector<SequenceState> states = {small_state(), SequenceState("none"), small_state()};
  write_safetensors(path("s"), file_of_states(states, "model-1", {{"position", at::arange(3, at::kLong)}}));
  std::vector<std::pair<std::string, Tensor>> extra;
  const auto read = states_of_file(read_safetensors(path("s")), "model-1", &extra);
  ASSERT_EQ(read.size(), 3u);
  EXPECT_TRUE(read[2].at("scan").equal(states[2].at("scan")));
  EXPECT_EQ(read[1].mechanism(), "none");
  EXPECT_TRUE(read[1].empty());
  ASSERT_EQ(extra.size(), 1u);
  EXPECT_EQ(extra[0].first, "position");
}

TEST_F(States, RefuseAnotherModelsFile) {
  write_safetensors(path("s"), file_of_states({small_state()}, "model-1"));
  try {
    states_of_file(read_safetensors(path("s")), "model-2");
    ADD_FAILURE() << "accepted";
  } catch (const InputError& error) {
    EXPECT_NE(std::string(error.what()).find("belongs to another model: model-1, this one is model-2"),
              std::string::npos)
        << error.what();
  }
  write_safetensors(path("w"), small_file());
  EXPECT_THROW(states_of_file(read_safetensors(path("w")), "model-1"), InputError);
}

}  // namespace
}  // namespace cortado
