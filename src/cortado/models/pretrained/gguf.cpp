#include <cmath>
#include <filesystem>

#include "cortado/base/error.h"
#include "cortado/models/pretrained/pretrained.h"

namespace cortado {

namespace {

constexpr int64_t kMostLayers = 10000;

constexpr const char* kRopeFactors = "rope_freqs.weight";  // of Llama 3: what each frequency is divided by

class GgufSource : public PretrainedSource {
 public:
  explicit GgufSource(std::shared_ptr<const GgufFile> file)
      : PretrainedSource(&PretrainedWeight::gguf), file_(std::move(file)) {
    for (const GgufTensor& tensor : file_->tensors()) shapes_.emplace(tensor.name, tensor.shape);
    architecture_ = file_->text("general.architecture");
    if (architecture_ != "llama" && architecture_ != "qwen2" && architecture_ != "gemma2") {
      file_->fail(concat("is of architecture ", printable(architecture_), "; supported: llama, qwen2, gemma2"));
    }
    decoder_.source = file_->name();
    decoder_.name = std::filesystem::path(file_->name()).stem().string();
    decoder_.gemma = architecture_ == "gemma2";
    read_sizes();
    read_rope();
    if (decoder_.gemma) read_caps();
    const auto biased = [&](const char* name) {
      return file_->find(std::string("blk.0.") + name + ".bias") != nullptr;
    };
    decoder_.qkv_bias = biased("attn_q");
    decoder_.output_bias = biased("attn_output");
    decoder_.feed_forward_bias = biased("ffn_up");
    decoder_.tied = !file_->find("output.weight");
  }

  Tensor read(const PretrainedWeight& weight) const override {
    const Tensor tensor = GgufFile::read(*file_->find(name_of(weight)));
    const bool q = weight.gguf.find(".attn_q.") != std::string::npos,
               k = weight.gguf.find(".attn_k.") != std::string::npos;
    if (architecture_ != "llama" || (!q && !k)) return tensor;
    // Llama's files have the rows of each head as pairs (0, d/2), (1, d/2 + 1), ..., for rotations of neighbours; ours
    // turn halves: rows 0 .. d/2 - 1, then the others.
    const int64_t heads = q ? decoder_.heads : decoder_.kv_heads;
    const Tensor pairs = tensor.reshape({heads, decoder_.head_dim / 2, 2, -1});
    return pairs.transpose(1, 2).reshape(tensor.sizes());
  }

  bool is_idle(const std::string& name) const override { return name == kRopeFactors; }

 private:
  std::string key(const char* name) const { return architecture_ + "." + name; }
  int64_t size(const char* name, int64_t most, std::optional<int64_t> fallback = {}) const {
    return file_->integer(key(name), 1, most, fallback);
  }

  void read_sizes() {
    decoder_.dim = size("embedding_length", 1 << 20);
    decoder_.heads = size("attention.head_count", 65536);
    decoder_.kv_heads = size("attention.head_count_kv", 65536, decoder_.heads);
    decoder_.head_dim = size("attention.key_length", 65536, std::max<int64_t>(1, decoder_.dim / decoder_.heads));
    const int64_t value_dim = size("attention.value_length", 65536, decoder_.head_dim);
    if (value_dim != decoder_.head_dim) {
      file_->fail(
          concat("has keys of ", decoder_.head_dim, " and values of ", value_dim, " channels; they must be equal"));
    }
    if (decoder_.head_dim % 2 != 0) file_->fail(concat("has heads of ", decoder_.head_dim, " channels, an odd number"));
    decoder_.feed_forward = size("feed_forward_length", 1 << 20);
    decoder_.context = file_->integer(key("context_length"), 0, int64_t{1} << 40, 0);
    decoder_.norm_eps = file_->number(key("attention.layer_norm_rms_epsilon"), 0.0, 1.0, 1e-5);
    const GgufTensor* embedding = file_->find("token_embd.weight");
    if (!embedding || embedding->shape.size() != 2) {
      file_->fail("has no tensor \"token_embd.weight\" of two dimensions");
    }
    decoder_.vocabulary = embedding->shape.front();
    // Gemma-2 slides in every second layer, from the first on.
    const int64_t window = file_->integer(key("attention.sliding_window"), 0, 1 << 30, decoder_.gemma ? 4096 : 0);
    const int64_t layers = size("block_count", kMostLayers);
    for (int64_t layer = 0; layer < layers; ++layer) {
      const bool sliding = window > 0 && (!decoder_.gemma || layer % 2 == 0);
      decoder_.windows.push_back(sliding ? std::optional(window) : std::nullopt);
    }
  }

  void read_rope() {
    const int64_t rotated = size("rope.dimension_count", 65536, decoder_.head_dim);
    if (rotated != decoder_.head_dim) {
      file_->fail(concat("rotates ", rotated, " of ", decoder_.head_dim, " channels a head, which is not supported"));
    }
    decoder_.rotary = Rotary(file_->number(key("rope.freq_base"), 1.0, 1e12, 1e4));
    RotaryScaling& scaling = decoder_.rotary.scaling;
    const std::string type = file_->text(key("rope.scaling.type"), "none");
    if (type != "none" && type != "linear") {
      file_->fail(concat("has rotary positions of type ", printable(type),
                         ", which is not supported; supported: none, linear"));
    }
    if (type == "linear") {
      scaling.type = RotaryScaling::Type::kLinear;
      scaling.factor = file_->number(key("rope.scaling.factor"), 1e-9, 1e9);
    }
    const GgufTensor* factors = file_->find(kRopeFactors);
    if (!factors) return;
    if (type == "linear") file_->fail("has two scalings of its rotary positions");
    if (factors->shape != std::vector<int64_t>{decoder_.head_dim / 2}) {
      file_->fail(concat("needs ", decoder_.head_dim / 2, " numbers in \"", kRopeFactors, "\""));
    }
    const Tensor values = GgufFile::read(*factors).to(at::kDouble);
    scaling.type = RotaryScaling::Type::kFactors;
    scaling.factors.assign(values.const_data_ptr<double>(), values.const_data_ptr<double>() + values.numel());
    if (const auto known = llama3_scaling(scaling.factors, decoder_.rotary.theta)) scaling = *known;
  }

  void read_caps() {
    const auto cap = [&](const char* name, double usual) {
      const double value = file_->number(key(name), 0.0, 1e6, usual);
      return value > 0 ? std::optional(value) : std::nullopt;
    };
    decoder_.softcap = cap("attn_logit_softcapping", 50.0);
    decoder_.final_softcap = cap("final_logit_softcapping", 30.0);
    // The file does not say: of the three sizes the largest, of 46 layers, divides by √(D/H), not √head_dim.
    const int64_t divisor = decoder_.layers() == 46 ? decoder_.dim / decoder_.heads : decoder_.head_dim;
    if (divisor != decoder_.head_dim) decoder_.scale = 1 / std::sqrt(static_cast<double>(divisor));
  }

  std::shared_ptr<const GgufFile> file_;
  std::string architecture_;
};

}  // namespace

std::unique_ptr<PretrainedSource> open_gguf(std::shared_ptr<const GgufFile> file) {
  return std::make_unique<GgufSource>(std::move(file));
}

}  // namespace cortado
