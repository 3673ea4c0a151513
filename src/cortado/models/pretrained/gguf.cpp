#include <cmath>
#include <filesystem>

#include "cortado/base/error.h"
#include "cortado/models/pretrained/pretrained.h"

namespace cortado {
namespace {

constexpr int64_t kMostLayers = 10000;
constexpr const char* kRopeFactors = "rope_freqs.weight";  // of Llama 3: divisors of the frequencies

// Reads a decoder's description from a file's metadata and tensors.
class GgufDecoder {
 public:
  explicit GgufDecoder(std::shared_ptr<const GgufFile> file) : file_(std::move(file)), metadata_(file_->metadata()) {
    architecture_ = metadata_.text("general.architecture");
    file_->fail_if(architecture_ != "llama" && architecture_ != "qwen2" && architecture_ != "gemma2",
                   "is of architecture ", printable(architecture_), "; supported: llama, qwen2, gemma2");
    decoder_.source = file_->name();
    decoder_.model.name = std::filesystem::path(file_->name()).stem().string();
    decoder_.model.post_norm = architecture_ == "gemma2";
    if (decoder_.model.post_norm) decoder_.model.feed_forward = FeedForwardKind::kGeglu;
    read_sizes();
    read_rope();
    if (decoder_.gemma()) read_caps();
    const auto biased = [&](const char* name) {
      return file_->find(std::string("blk.0.") + name + ".bias") != nullptr;
    };
    decoder_.attention.bias = biased("attn_q");
    decoder_.attention.output_bias = biased("attn_output");
    decoder_.model.feed_forward_bias = biased("ffn_up");
    decoder_.model.tied = !file_->find("output.weight");
  }

  const PretrainedDecoder& decoder() const { return decoder_; }
  const std::string& architecture() const { return architecture_; }

 private:
  std::string key(const char* name) const { return architecture_ + "." + name; }
  int64_t size(const char* name, int64_t most, std::optional<int64_t> fallback = {}) {
    return metadata_.integer(key(name), 1, most, fallback);
  }

  void read_sizes() {
    ModelConfig& model = decoder_.model;
    AttentionSettings& attention = decoder_.attention;
    model.dim = size("embedding_length", 1 << 20);
    attention.heads = size("attention.head_count", 65536);
    attention.kv_heads = size("attention.head_count_kv", 65536, attention.heads);
    attention.head_dim = size("attention.key_length", 65536, std::max<int64_t>(1, model.dim / attention.heads));
    const int64_t value_dim = size("attention.value_length", 65536, attention.head_dim);
    file_->fail_if(value_dim != attention.head_dim, "has keys of ", attention.head_dim, " and values of ", value_dim,
                   " channels; they must be equal");
    file_->fail_if(attention.head_dim % 2 != 0, "has heads of ", attention.head_dim, " channels, an odd number");
    model.feed_forward_dim = size("feed_forward_length", 1 << 20);
    model.context = metadata_.integer(key("context_length"), 0, int64_t{1} << 40, 0);
    model.norm_eps = metadata_.number(key("attention.layer_norm_rms_epsilon"), 0.0, 1.0, 1e-5);
    const GgufTensor* embedding = file_->find("token_embd.weight");
    file_->fail_if(!embedding || embedding->shape.size() != 2, "has no tensor \"token_embd.weight\" of two dimensions");
    model.vocabulary = embedding->shape.front();
    // Gemma-2 has a window in every second layer, starting with the first.
    const int64_t window = metadata_.integer(key("attention.sliding_window"), 0, 1 << 30, decoder_.gemma() ? 4096 : 0);
    const int64_t layers = size("block_count", kMostLayers);
    for (int64_t layer = 0; layer < layers; ++layer) {
      const bool sliding = window > 0 && (!decoder_.gemma() || layer % 2 == 0);
      decoder_.windows.push_back(sliding ? std::optional(window) : std::nullopt);
    }
  }

  void read_rope() {
    const int64_t head_dim = decoder_.attention.head_dim;
    const int64_t rotated = size("rope.dimension_count", 65536, head_dim);
    file_->fail_if(rotated != head_dim, "rotates ", rotated, " of ", head_dim,
                   " channels a head, which is not supported");
    decoder_.attention.rotary = Rotary(metadata_.number(key("rope.freq_base"), 1.0, 1e12, 1e4));
    RotaryScaling& scaling = decoder_.attention.rotary->scaling;
    // As llama.cpp: a factor without a type is linear, and so is "scale_linear" of its first files.
    const double early = metadata_.number(key("rope.scale_linear"), 0.0, 1e9, 0.0);
    const double factor = metadata_.number(key("rope.scaling.factor"), 0.0, 1e9, early);
    const std::string type = metadata_.text(key("rope.scaling.type"), factor > 0 ? "linear" : "none");
    file_->fail_if(type != "none" && type != "linear", "has rotary positions of type ", printable(type),
                   ", which is not supported; supported: none, linear");
    const bool linear = type == "linear" && factor > 0 && factor != 1;
    if (linear) {
      scaling.type = RotaryScaling::Type::kLinear;
      scaling.factor = factor;
    }
    const GgufTensor* factors = file_->find(kRopeFactors);
    if (!factors) return;
    file_->fail_if(linear, "has two scalings of its rotary positions");
    file_->fail_if(factors->shape != std::vector<int64_t>{head_dim / 2}, "needs ", head_dim / 2, " numbers in \"",
                   kRopeFactors, "\"");
    const Tensor values = GgufFile::read(*factors).to(at::kDouble);
    scaling.type = RotaryScaling::Type::kFactors;
    scaling.factors.assign(values.const_data_ptr<double>(), values.const_data_ptr<double>() + values.numel());
    if (const auto known = llama3_scaling(scaling.factors, decoder_.attention.rotary->theta)) scaling = *known;
  }

  void read_caps() {
    AttentionSettings& attention = decoder_.attention;
    const auto cap = [&](const char* name, double usual) {
      const double value = metadata_.number(key(name), 0.0, 1e6, usual);
      return value > 0 ? std::optional(value) : std::nullopt;
    };
    attention.softcap = cap("attn_logit_softcapping", 50.0);
    decoder_.model.final_softcap = cap("final_logit_softcapping", 30.0);
    // The file does not say it: the largest of Gemma-2's three sizes, with 46 layers, divides the scores by √(D/H), not
    // √head_dim.
    const int64_t divisor = decoder_.layers() == 46 ? decoder_.model.dim / attention.heads : attention.head_dim;
    if (divisor != attention.head_dim) attention.scale = 1 / std::sqrt(static_cast<double>(divisor));
  }

  std::shared_ptr<const GgufFile> file_;
  JsonReader metadata_;
  std::string architecture_;
  PretrainedDecoder decoder_;
};

}  // namespace

PretrainedSource open_gguf(std::shared_ptr<const GgufFile> file) {
  const GgufDecoder read(file);
  PretrainedSource source{read.decoder(), &PretrainedWeight::gguf};
  for (const GgufTensor& tensor : file->tensors()) source.shapes.emplace(tensor.name, tensor.shape);
  const AttentionSettings attention = read.decoder().attention;
  source.read = [=, llama = read.architecture() == "llama"](const PretrainedWeight& weight) {
    const Tensor tensor = GgufFile::read(*file->find(weight.gguf));
    const bool q = weight.gguf.find(".attn_q.") != std::string::npos,
               k = weight.gguf.find(".attn_k.") != std::string::npos;
    if (!llama || (!q && !k)) return tensor;
    // Llama's GGUF files order the rows of a head as pairs (0, d/2), (1, d/2 + 1), ..., to rotate neighbours. Our
    // rotation pairs halves: rows 0 .. d/2 - 1 come first, then the others.
    const int64_t heads = q ? attention.heads : attention.kv_heads;
    const Tensor pairs = tensor.reshape({heads, attention.head_dim / 2, 2, -1});
    return pairs.transpose(1, 2).reshape(tensor.sizes());
  };
  source.is_idle = [](const std::string& name) { return name == kRopeFactors; };
  return source;
}

}  // namespace cortado
