#include <cmath>
#include <filesystem>

#include "cortado/base/error.h"
#include "cortado/models/pretrained/gguf_families.h"
#include "cortado/models/pretrained/gguf_keys.h"
#include "cortado/models/pretrained/gguf_rope.h"
#include "cortado/models/pretrained/pretrained.h"

namespace cortado {
namespace {

constexpr int64_t kMostLayers = 10000;

// Reads a decoder's description from a file's metadata and tensors.
class GgufDecoder {
 public:
  explicit GgufDecoder(std::shared_ptr<const GgufFile> file) : file_(std::move(file)), keys_(*file_) {
    family_ = family_of(keys_.architecture);
    decoder_.source = file_->name();
    decoder_.model.name = std::filesystem::path(file_->name()).stem().string();
    decoder_.model.post_norm = family_.post_norm;
    if (family_.geglu) decoder_.model.feed_forward.kind = FeedForwardKind::kGeglu;
    read_sizes();
    decoder_.attention.rotary = read_rope();
    if (family_.post_norm) read_caps();
    if (is("gemma3")) read_gemma3_positions();
    if (is("smollm3")) leave_out_positions();
    if (is("granite")) read_multipliers();
    const auto biased = [&](const char* name) {
      return file_->find(std::string("blk.0.") + name + ".bias") != nullptr;
    };
    decoder_.attention.bias = biased("attn_q");
    decoder_.attention.output_bias = biased("attn_output");
    decoder_.model.feed_forward.bias = biased("ffn_up");
    decoder_.model.tied = !file_->find("output.weight");
  }

  const PretrainedDecoder& decoder() const { return decoder_; }
  const GgufFamily& family() const { return family_; }

 private:
  GgufFamily family_of(const std::string& architecture) const {
    std::string known;
    if (const GgufFamily* family = find_gguf_family(architecture)) return *family;
    for (const GgufFamily& family : kGgufFamilies) known += concat(known.empty() ? "" : ", ", family.architecture);
    file_->fail_if(true, "is of architecture ", printable(architecture), "; supported: ", known, ", ",
                   renamed_gguf_architectures());
    return {};
  }
  bool is(const char* architecture) const { return family_.architecture == architecture; }
  int64_t size(const char* name, int64_t most, std::optional<int64_t> fallback = {}) {
    return keys_.metadata.integer(keys_.key(name), 1, most, fallback);
  }

  void read_sizes() {
    ModelConfig& model = decoder_.model;
    AttentionSettings& attention = decoder_.attention;
    model.dim = size("embedding_length", 1 << 20);
    attention.heads = size("attention.head_count", 65536);
    attention.kv_heads = size("attention.head_count_kv", 65536, attention.heads);
    attention.head_dim = size("attention.key_length", 65536, std::max<int64_t>(1, model.dim / attention.heads));
    const int64_t value_dim = size("attention.value_length", 65536, attention.head_dim);
    expect_gguf_heads(*file_, attention.head_dim, value_dim);
    model.feed_forward.dim = size("feed_forward_length", 1 << 20);
    model.context = keys_.metadata.integer(keys_.key("context_length"), 0, int64_t{1} << 40, 0);
    model.norm_eps = keys_.metadata.number(keys_.key("attention.layer_norm_rms_epsilon"), 0.0, 1.0, 1e-5);
    model.vocabulary = gguf_vocabulary_size(*file_);
    if (family_.qk_norm) attention.qk_norm = model.norm_eps;
    read_windows();
  }

  void read_windows() {
    const int64_t window =
        keys_.metadata.integer(keys_.key("attention.sliding_window"), 0, 1 << 30, is("gemma2") ? 4096 : 0);
    const int64_t usual = family_.window_period;
    const int64_t pattern =
        keys_.metadata.integer(keys_.key("attention.sliding_window_pattern"), 0, kMostLayers, usual);
    const int64_t layers = size("block_count", kMostLayers);
    for (int64_t layer = 0; layer < layers; ++layer) {
      const bool sliding = window > 0 && (pattern == 0 || (layer + 1) % pattern != 0);
      decoder_.windows.push_back(sliding ? std::optional(window) : std::nullopt);
    }
  }

  // Phi-3 may rotate a part of each head.
  Rotary read_rope() {
    const int64_t head_dim = decoder_.attention.head_dim;
    const int64_t rotated = size("rope.dimension_count", 65536, head_dim);
    file_->fail_if(rotated != head_dim && (!is("phi3") || rotated > head_dim || rotated % 2 != 0), "rotates ", rotated,
                   " of ", head_dim, " channels a head, which is not supported");
    decoder_.rotary_fraction = static_cast<double>(rotated) / static_cast<double>(head_dim);
    const GgufRope rope{*file_, keys_.metadata, keys_.architecture, decoder_.model.context};
    Rotary rotary(rope.theta());
    RotaryScaling& scaling = rotary.scaling;
    scaling = rope.scaling();
    if (const auto factors = read_factors(kRopeFactors, rotated / 2)) {
      file_->fail_if(scaling.type != RotaryScaling::Type::kNone, "has two scalings of its rotary positions");
      scaling.type = RotaryScaling::Type::kFactors;
      scaling.factors = *factors;
      if (const auto known = llama3_scaling(scaling.factors, rotary.theta)) scaling = *known;
    }
    if (const auto factors = read_factors(kLongFactors, rotated / 2)) read_longrope(rope, scaling, *factors);
    return rotary;
  }

  void read_longrope(const GgufRope& rope, RotaryScaling& scaling, const std::vector<double>& long_factors) {
    file_->fail_if(scaling.type != RotaryScaling::Type::kNone, "has two scalings of its rotary positions");
    const auto short_factors = read_factors(kShortFactors, static_cast<int64_t>(long_factors.size()));
    file_->fail_if(!short_factors, "has no tensor \"", kShortFactors, "\"");
    scaling.type = RotaryScaling::Type::kLongrope;
    scaling.long_factors = long_factors;
    scaling.short_factors = *short_factors;
    scaling.original_context = rope.original_context(2);
    scaling.context = decoder_.model.context;
    file_->fail_if(scaling.context == 0, "lacks \"", keys_.key("context_length"), "\", which longrope needs");
    scaling.attention_factor = rope.attention_factor();
  }

  // nullopt without the tensor.
  std::optional<std::vector<double>> read_factors(const char* name, int64_t count) const {
    const GgufTensor* factors = file_->find(name);
    if (!factors) return std::nullopt;
    file_->fail_if(factors->shape != std::vector<int64_t>{count}, "needs ", count, " numbers in \"", name, "\"");
    const Tensor values = GgufFile::read(*factors).to(at::kDouble);
    return std::vector(values.const_data_ptr<double>(), values.const_data_ptr<double>() + values.numel());
  }

  // The file's positions are those of full attention.
  void read_gemma3_positions() {
    const Rotary full = *decoder_.attention.rotary,
                 sliding(keys_.metadata.number(keys_.key("rope.freq_base_swa"), 1.0, 1e12, 1e4));
    for (const auto& window : decoder_.windows) decoder_.rotaries.push_back(window ? sliding : full);
    decoder_.attention.rotary = sliding;
  }

  // SmolLM3.
  void leave_out_positions() {
    for (int64_t layer = 0; layer < decoder_.layers(); ++layer)
      decoder_.rotaries.push_back((layer + 1) % kBarePeriod != 0 ? decoder_.attention.rotary : std::nullopt);
  }

  void read_multipliers() {
    decoder_.attention.scale = keys_.factor("attention.scale");
    const auto factor = [&](const char* name) { return keys_.factor(name).value_or(1); };
    decoder_.set_multipliers({factor("embedding_scale"), factor("residual_scale"), factor("logit_scale")});
  }

  void read_caps() {
    AttentionSettings& attention = decoder_.attention;
    const auto cap = [&](const char* name, double usual) {
      const double value = keys_.metadata.number(keys_.key(name), 0.0, 1e6, usual);
      return value > 0 ? std::optional(value) : std::nullopt;
    };
    if (is("gemma2")) attention.softcap = cap("attn_logit_softcapping", 50.0);
    decoder_.model.final_softcap = cap("final_logit_softcapping", is("gemma2") ? 30.0 : 0.0);
    const int64_t divisor = gguf_gemma_divisor(family_, decoder_);
    if (divisor != attention.head_dim) attention.scale = 1 / std::sqrt(static_cast<double>(divisor));
  }

  std::shared_ptr<const GgufFile> file_;
  GgufKeys keys_;
  GgufFamily family_;
  PretrainedDecoder decoder_;
};

// Rows of a tensor.
struct GgufRows {
  std::string tensor;
  int64_t begin, count;
};

// Which rows each parameter has of Phi-3's joint tensors, of which ffn_up has the gate's first.
std::map<std::string, GgufRows> joint_rows(const GgufFile& file, const PretrainedDecoder& decoder) {
  std::map<std::string, GgufRows> parts;
  const int64_t width = decoder.attention.width(), kv_width = decoder.attention.kv_width();
  const int64_t hidden = decoder.model.feed_forward.dim;
  for (int64_t i = 0; i < decoder.layers(); ++i) {
    const std::string layer = concat("blk.", i, ".");
    const std::string qkv = layer + "attn_qkv.weight", up = layer + "ffn_up.weight";
    for (const auto& [name, rows] : {std::pair(qkv, width + 2 * kv_width), {up, 2 * hidden}}) {
      const GgufTensor* joint = file.find(name);
      file.fail_if(!joint, "has no tensor \"", name, "\"");
      file.fail_if(joint->shape != std::vector{rows, decoder.model.dim}, "has \"", name, "\" of ",
                   at::IntArrayRef(joint->shape), ", expected ", at::IntArrayRef({rows, decoder.model.dim}));
    }
    parts[layer + "attn_q.weight"] = {qkv, 0, width};
    parts[layer + "attn_k.weight"] = {qkv, width, kv_width};
    parts[layer + "attn_v.weight"] = {qkv, width + kv_width, kv_width};
    parts[layer + "ffn_gate.weight"] = {up, 0, hidden};
    parts[up] = {up, hidden, hidden};
  }
  return parts;
}

}  // namespace

PretrainedSource open_gguf(const std::shared_ptr<const GgufFile>& file) {
  const GgufDecoder read(file);
  PretrainedSource source{read.decoder(), &PretrainedWeight::gguf};
  for (const GgufTensor& tensor : file->tensors()) source.shapes.emplace(tensor.name, tensor.shape);
  std::map<std::string, GgufRows> parts;
  if (read.family().joint) parts = joint_rows(*file, read.decoder());
  for (const auto& [name, rows] : parts) source.shapes.erase(rows.tensor);
  for (const auto& [name, rows] : parts) source.shapes[name] = {rows.count, read.decoder().model.dim};
  const AttentionSettings attention = read.decoder().attention;
  source.read = [=, pairs = read.family().pairs](const PretrainedWeight& weight) {
    const auto part = parts.find(weight.gguf);
    if (part != parts.end()) {
      const GgufRows& rows = part->second;
      return GgufFile::read(*file->find(rows.tensor)).narrow(0, rows.begin, rows.count).clone();
    }
    Tensor tensor = GgufFile::read(*file->find(weight.gguf));
    const bool q = weight.gguf.find(".attn_q.") != std::string::npos,
               k = weight.gguf.find(".attn_k.") != std::string::npos;
    if (!pairs || (!q && !k)) return tensor;
    // Our rotation pairs halves: rows 0 .. d/2 - 1 come first, then the others.
    const int64_t heads = q ? attention.heads : attention.kv_heads;
    return tensor.reshape({heads, attention.head_dim / 2, 2, -1}).transpose(1, 2).reshape(tensor.sizes());
  };
  source.is_idle = [](const std::string& name) {
    return name == kRopeFactors || name == kLongFactors || name == kShortFactors;
  };
  return source;
}

}  // namespace cortado
