// Imports of damaged and inconsistent files fail with one line. tests/parity/test_import.py tests that right files give
// right models.
#include "cortado/models/pretrained/pretrained.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <functional>
#include <random>

#include "cortado/base/error.h"
#include "cortado/base/files.h"
#include "cortado/formats/safetensors.h"
#include "cortado/models/checkpoint.h"
#include "cortado/testing/gguf.h"

namespace cortado {
namespace {

constexpr int64_t kVocabulary = 32, kDim = 32, kHeads = 4, kKvHeads = 2, kHidden = 64, kLayers = 2;

// A Llama in GGUF, with matrices in Q8_0 blocks and norms in F32.
GgufBuilder small_llama() {
  GgufBuilder file;
  file.add("general.architecture", "llama");
  file.add("llama.embedding_length", static_cast<int>(kDim));
  file.add("llama.block_count", static_cast<int>(kLayers));
  file.add("llama.feed_forward_length", static_cast<int>(kHidden));
  file.add("llama.attention.head_count", static_cast<int>(kHeads));
  file.add("llama.attention.head_count_kv", static_cast<int>(kKvHeads));
  file.add("llama.attention.layer_norm_rms_epsilon", 1e-5);
  file.add("llama.context_length", 64);
  file.add("tokenizer.ggml.tokens", std::vector<std::string>(kVocabulary, "token"));
  const auto matrix = [&](const std::string& name, int64_t out, int64_t in) {
    file.tensor(name, {out, in}, 8, std::string(static_cast<size_t>(out * in / 32 * 34), '\1'));
  };
  const auto norm = [&](const std::string& name) {
    file.tensor(name, {kDim}, 0, std::string(static_cast<size_t>(kDim * 4), '\0'));
  };
  matrix("token_embd.weight", kVocabulary, kDim);
  for (int64_t i = 0; i < kLayers; ++i) {
    const std::string block = concat("blk.", i, ".");
    norm(block + "attn_norm.weight");
    matrix(block + "attn_q.weight", kDim, kDim);
    matrix(block + "attn_k.weight", kDim / 2, kDim);
    matrix(block + "attn_v.weight", kDim / 2, kDim);
    matrix(block + "attn_output.weight", kDim, kDim);
    norm(block + "ffn_norm.weight");
    matrix(block + "ffn_gate.weight", kHidden, kDim);
    matrix(block + "ffn_up.weight", kHidden, kDim);
    matrix(block + "ffn_down.weight", kDim, kHidden);
  }
  norm("output_norm.weight");
  return file;
}

PretrainedModel read_gguf(const std::string& bytes) {
  return read_pretrained(open_gguf(std::make_shared<const GgufFile>(bytes, "x.gguf")));
}

// Limits the process to little more memory than it uses now. Does nothing under the address sanitizer, which reserves
// too much for this and has its own limit on one allocation.
class MemoryLimit {
 public:
  explicit MemoryLimit(uint64_t more) {
#if !defined(__SANITIZE_ADDRESS__)
    std::ifstream statm("/proc/self/statm");
    uint64_t pages = 0;
    statm >> pages;
    getrlimit(RLIMIT_AS, &before_);
    rlimit limit = before_;
    limit.rlim_cur = pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE)) + more;
    setrlimit(RLIMIT_AS, &limit);
    limited_ = true;
#else
    (void)more;
#endif
  }
  ~MemoryLimit() {
    if (limited_) setrlimit(RLIMIT_AS, &before_);
  }

 private:
  rlimit before_{};
  bool limited_ = false;
};

// The number of damaged files, from CORTADO_FUZZ_CASES.
int fuzz_cases() {
  const char* wanted = std::getenv("CORTADO_FUZZ_CASES");
  return wanted ? std::atoi(wanted) : 2000;
}

// Damages the first `header` bytes in one of several ways.
std::string damaged(const std::string& good, size_t header, std::mt19937_64& random) {
  std::string bytes = good;
  const auto below = [&](size_t limit) { return static_cast<size_t>(random() % limit); };
  const size_t place = below(header);
  const auto put = [&](uint64_t value, size_t size) {
    for (size_t i = 0; i < size && place + i < bytes.size(); ++i) bytes[place + i] = static_cast<char>(value >> 8 * i);
  };
  const uint64_t extremes[] = {0,
                               1,
                               2,
                               31,
                               255,
                               65536,
                               uint64_t{1} << 31,
                               uint64_t{1} << 32,
                               uint64_t{1} << 62,
                               uint64_t{1} << 63,
                               ~uint64_t{0},
                               good.size(),
                               good.size() - place,
                               ~uint64_t{31}};
  switch (below(6)) {
    case 0:
      bytes[place] = static_cast<char>(bytes[place] ^ (1 << below(8)));
      break;
    case 1:
      put(random(), 1 + below(8));
      break;
    case 2:
      put(extremes[below(std::size(extremes))], 8);
      break;
    case 3:
      put(extremes[below(std::size(extremes))], 4);
      break;
    case 4:
      bytes.resize(below(bytes.size()));
      break;
    default:
      if (below(2))
        bytes.erase(place, 1 + below(16));
      else
        bytes.insert(place, good.substr(below(header), 1 + below(64)));
  }
  return bytes;
}

// Reads damaged copies: each must give a model or an InputError of one line.
void fuzz(const std::string& good, size_t header, const std::function<void(const std::string&)>& read) {
  std::mt19937_64 random(1);
  const int cases = fuzz_cases();
  int refused = 0;
  read(good);
  const MemoryLimit limit(uint64_t{1} << 30);
  for (int i = 0; i < cases; ++i) {
    const std::string bad = damaged(good, header, random);
    try {
      read(bad);
    } catch (const InputError& error) {
      ++refused;
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
    } catch (const std::exception& error) {
      ADD_FAILURE() << "case " << i << ": " << error.what();
    }
  }
  EXPECT_GT(refused, cases / 2);
  EXPECT_LT(refused, cases);
}

TEST(PretrainedFuzz, DamagedGgufFilesAreRefused) {
  const GgufBuilder llama = small_llama();
  fuzz(llama.file(), llama.header().size(), [](const std::string& bytes) { read_gguf(bytes); });
}

TEST(PretrainedFuzz, DamagedSafetensorsAreRefused) {
  const TemporaryDirectory folder;
  const std::string path = folder.path() + "/model.safetensors";
  write_safetensors(path, {{{"a", at::ones({2, 3})}, {"b", at::ones({4}).to(at::kHalf)}}, {{"step", "1"}}});
  const std::string good = read_file(path);
  uint64_t header = 0;
  std::memcpy(&header, good.data(), 8);
  fuzz(good, 8 + header, [&](const std::string& bytes) {
    std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    read_safetensors(path);
  });
}

void expect_refusal(const std::function<void()>& act, const std::string& words) {
  try {
    act();
    ADD_FAILURE() << "accepted: " << words;
  } catch (const InputError& error) {
    EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
  }
}

TEST(Pretrained, WritesARunThatOpens) {
  const TemporaryDirectory run;
  const PretrainedModel model = read_gguf(small_llama().file());
  write_pretrained(model, run.path(), "x.gguf");
  const auto opened = open_model(run.path());
  EXPECT_EQ(opened->config().to_json(), model.config.to_json());
  const float expected = static_cast<float>(c10::Half(0x0101, c10::Half::from_bits()));
  for (const auto& weight : opened->named_parameters()) {
    EXPECT_EQ(weight.value().max().item<float>(), weight.value().dim() == 2 ? expected : 0.0F) << weight.key();
  }
  for (const auto type : {at::kBFloat16, at::kHalf}) {
    OpenOptions options;
    options.dtype = type;
    const auto small = open_model(run.path(), options);
    EXPECT_EQ(small->dtype(), type);
    EXPECT_EQ(small->forward(at::zeros({1, 3}, at::kLong)).scalar_type(), type);
  }
}

// As llama.cpp: a factor without a type, and its first name.
TEST(Pretrained, LinearPositionsOfGguf) {
  for (const auto& [key, type] : {std::pair("llama.rope.scale_linear", ""), std::pair("llama.rope.scaling.factor", ""),
                                  std::pair("llama.rope.scaling.factor", "linear")}) {
    GgufBuilder file = small_llama();
    file.add(key, 4.0);
    if (*type) file.add("llama.rope.scaling.type", type);
    const Json config = read_gguf(file.file()).config.to_json();
    EXPECT_EQ(config["rope_scaling"]["type"], "linear") << key;
    EXPECT_EQ(config["rope_scaling"]["factor"], 4.0) << key;
  }
  GgufBuilder none = small_llama();
  none.add("llama.rope.scaling.type", "none");
  none.add("llama.rope.scaling.factor", 4.0);
  EXPECT_FALSE(read_gguf(none.file()).config.to_json().contains("rope_scaling"));
}

TEST(Pretrained, NamesWhatDoesNotFit) {
  const auto refused = [](const std::function<void(GgufBuilder&)>& change, const std::string& words) {
    GgufBuilder file = small_llama();
    change(file);
    expect_refusal([&] { read_gguf(file.file()); }, words);
  };
  refused([](GgufBuilder& file) { file.add("llama.rope.dimension_count", 4); }, "rotates 4 of 8 channels");
  refused([](GgufBuilder& file) { file.add("llama.rope.scaling.type", "dynamic"); },
          "supported: none, linear, yarn, longrope");
  refused([](GgufBuilder& file) { file.add("llama.rope.scaling.type", "longrope"); },
          "has no tensor \"rope_factors_long.weight\"");
  refused([](GgufBuilder& file) { file.tensor("rope_factors_long.weight", {4}, 0, std::string(16, '\1')); },
          "has no tensor \"rope_factors_short.weight\"");
  refused(
      [](GgufBuilder& file) {
        file.add("llama.rope.scaling.type", "yarn");
        file.add("llama.rope.scaling.factor", 4.0);
        file.add("llama.rope.scaling.yarn_ext_factor", 0.5);
      },
      "has \"llama.rope.scaling.yarn_ext_factor\" 0.5, which is not supported; supported: 1");
  refused([](GgufBuilder& file) { file.tensor("blk.0.attn_q.bias", {32}, 0, std::string(128, '\0')); },
          "there is no tensor \"blk.0.attn_k.bias\"");
  refused([](GgufBuilder& file) { file.tensor("blk.7.extra", {32}, 0, std::string(128, '\0')); },
          "tensor \"blk.7.extra\" belongs to no part");
  refused([](GgufBuilder& file) { file.tensor("rope_freqs.weight", {3}, 0, std::string(12, '\0')); },
          "needs 4 numbers in \"rope_freqs.weight\"");
  refused([](GgufBuilder& file) { file.tensor("output.weight", {31, 32}, 0, std::string(3968, '\0')); },
          "tensor \"output.weight\" is [31, 32], expected [32, 32]");
  GgufBuilder other;
  other.add("general.architecture", "rwkv6");
  expect_refusal([&] { read_gguf(other.file()); },
                 "is of architecture \"rwkv6\"; supported: llama, qwen2, qwen3, smollm3, granite, phi3, gemma, gemma2, "
                 "gemma3, mamba, mamba2, jamba, granitehybrid, qwen3moe, qwen3next, qwen35, qwen35moe");
}

TEST(Pretrained, NamesWhatAFolderLacks) {
  const TemporaryDirectory folder;
  const auto write = [&](const std::string& name, const std::string& text) {
    std::ofstream(folder.path() + "/" + name) << text;
  };
  const auto refused = [&](const std::string& words) {
    expect_refusal([&] { read_pretrained(open_pretrained(folder.path())); }, words);
  };
  expect_refusal([&] { open_pretrained(folder.path() + "/none"); }, "there is no");
  refused("has no config.json");
  write("config.json", R"({"model_type": "bert"})");
  refused(
      "models of type \"bert\" are not supported; supported: llama, mistral, qwen2, qwen3, smollm3, granite, "
      "seed_oss, ministral, gemma, gemma2, gemma3_text, phi3, gemma3, mistral3, mamba, ");
  write("config.json", R"({"model_type": "llama", "quantization_config": {"bits": 4}})");
  refused("weights quantised by \"unknown\" are not read");
  const std::string sizes = R"("model_type": "llama", "vocab_size": 4, "hidden_size": 8, "num_attention_heads": 2,
                               "intermediate_size": 8, "num_hidden_layers": 1)";
  write("config.json", "{" + sizes + R"(, "rope_scaling": {"rope_type": "axial", "factor": 2}})");
  refused("rotary positions of type \"axial\" are not supported; supported: default, linear, llama3, yarn, longrope");
  write("config.json", "{" + sizes + R"(, "hidden_act": "relu"})");
  refused("activation \"relu\" is not supported; supported: silu");
  write("config.json", "{" + sizes + "}");
  refused("has no model.safetensors");
  write("model.safetensors.index.json", R"({"weight_map": {"lm_head.weight": "../other.safetensors"}})");
  refused("must give a file's name");
  write("model.safetensors.index.json", R"({"weight_map": {"lm_head.weight": "model-2.safetensors"}})");
  refused("lacks the shard model-2.safetensors");
  write_safetensors(folder.path() + "/model-2.safetensors", {{{"model.norm.weight", at::ones({8})}}, {}});
  refused("lacks \"lm_head.weight\", which the index says it has");
  write("model.safetensors.index.json", R"({"weight_map": {"model.norm.weight": "model-2.safetensors"}})");
  refused("there is no tensor \"model.embed_tokens.weight\"");
}

}  // namespace
}  // namespace cortado
