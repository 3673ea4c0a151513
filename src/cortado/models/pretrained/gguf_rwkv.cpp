// GGUF files of RWKV-6 and RWKV-7, whose folders are those of flash-linear-attention.
#include <cmath>

#include "cortado/models/pretrained/gguf_keys.h"

namespace cortado {
namespace {

// A block's tensors: their names in a folder and in a file.
const std::map<std::string, std::string>& rwkv_tensors() {
  static const std::map<std::string, std::string> all = {
      {"attn_norm.weight", "attn_norm.weight"},
      {"attn_norm.bias", "attn_norm.bias"},
      {"ffn_norm.weight", "attn_norm_2.weight"},
      {"ffn_norm.bias", "attn_norm_2.bias"},
      {"attn.g_norm.weight", "time_mix_ln.weight"},
      {"attn.g_norm.bias", "time_mix_ln.bias"},
      {"attn.o_proj.weight", "time_mix_output.weight"},
      {"ffn.value.weight", "channel_mix_value.weight"},
      // RWKV-7
      {"attn.r_proj.weight", "time_mix_receptance.weight"},
      {"attn.k_proj.weight", "time_mix_key.weight"},
      {"attn.v_proj.weight", "time_mix_value.weight"},
      {"attn.k_k", "time_mix_k_k.weight"},
      {"attn.k_a", "time_mix_k_a.weight"},
      {"attn.r_k", "time_mix_r_k.weight"},
      {"ffn.key.weight", "channel_mix_key.weight"},
      {"ffn.x_k", "channel_mix_lerp_k.weight"},
      // RWKV-6
      {"attn.r_proj.linear.weight", "time_mix_receptance.weight"},
      {"attn.k_proj.linear.weight", "time_mix_key.weight"},
      {"attn.v_proj.linear.weight", "time_mix_value.weight"},
      {"attn.g_proj.linear.weight", "time_mix_gate.weight"},
      {"attn.bonus", "time_mix_first.weight"},
      {"attn.x_proj.0.mu", "time_mix_lerp_x.weight"},
      {"attn.x_proj.0.linear.weight", "time_mix_w1.weight"},
      {"attn.x_proj.2.weight", "time_mix_w2.weight"},
      {"attn.x_bias", "time_mix_lerp_fused.weight"},
      {"attn.w_proj.linear.lora.0.weight", "time_mix_decay_w1.weight"},
      {"attn.w_proj.linear.lora.2.weight", "time_mix_decay_w2.weight"},
      {"attn.w_proj.linear.lora.2.bias", "time_mix_decay.weight"},
      {"ffn.key.linear.weight", "channel_mix_key.weight"},
      {"ffn.receptance.linear.weight", "channel_mix_receptance.weight"},
      {"ffn.key.mu", "channel_mix_lerp_k.weight"},
      {"ffn.receptance.mu", "channel_mix_lerp_r.weight"}};
  return all;
}

const std::map<std::string, std::string> kRwkvOutside = {{"model.embeddings.weight", "token_embd.weight"},
                                                         {"model.layers.0.pre_norm.weight", "token_embd_norm.weight"},
                                                         {"model.layers.0.pre_norm.bias", "token_embd_norm.bias"},
                                                         {"model.norm.weight", "output_norm.weight"},
                                                         {"model.norm.bias", "output_norm.bias"},
                                                         {"lm_head.weight", "output.weight"}};

// The folder's channel mix has the share of the token before. Ours is that of the token itself.
Tensor other_share(const Tensor& x) { return 1 - x.to(at::kFloat); }
const TheirTensor::Value kOtherShare = {other_share, other_share};

// RWKV-6's mixes are r, w, k, v, g in the folder, and w, k, v, r, g in the file.
Tensor mixes_in_order(const Tensor& x) { return x.index_select(0, at::tensor({3, 0, 1, 2, 4}, at::kLong)); }

// The file's name of a low-rank map's tensor of RWKV-7, "attn.w_lora.lora.2.bias"; "" for other tensors.
std::string low_rank_name(const std::string& inside) {
  const size_t lora = inside.find("_lora.lora.");
  if (!inside.starts_with("attn.") || lora == std::string::npos) return "";
  const std::string part = inside.substr(lora + 11);
  const char* number = part == "0.weight" ? "1" : part == "2.weight" ? "2" : "0";
  return concat("time_mix_", inside.substr(5, lora - 5), number, ".weight");
}

// The file's form of a block's tensor, whose name within the folder's block is `inside`.
TheirTensor rwkv_form(const std::string& inside, const TheirTensor& theirs, int64_t dim) {
  static constexpr std::string_view kMixes = "rwkvag";
  const std::string low_rank = low_rank_name(inside);
  if (!low_rank.empty()) return {low_rank, theirs.shape};
  if (inside.starts_with("attn.x_") && inside.size() == 8) {  // one of RWKV-7's mixes: "attn.x_r"
    const auto number = static_cast<int64_t>(kMixes.find(inside[7]));
    return {"time_mix_lerp_fused.weight", {6, 1, 1, dim}, theirs.change, number};
  }
  TheirTensor form{rwkv_tensors().at(inside), theirs.shape, theirs.change};
  if (inside == "attn.r_k") {
    form.shape = {dim};
    form.change = [shape = theirs.shape](const Tensor& x) { return x.view(shape); };
  } else if (inside == "attn.x_bias") {
    form.shape = {5, 1, 1, dim};
    form.change = [=](const Tensor& x) { return mixes_in_order(x).view({5, dim}); };
  } else if (inside == "attn.x_proj.0.linear.weight") {
    form.change = [](const Tensor& x) { return mixes_in_order(x.unflatten(0, {5, -1})).flatten(0, 1); };
  } else if (inside == "attn.x_proj.2.weight") {
    form.shape = {5, dim, theirs.shape[1] / 5};
    form.change = [](const Tensor& x) { return mixes_in_order(x).transpose(1, 2); };
  } else if (inside.ends_with(".mu") && inside.starts_with("ffn.")) {
    form.change = {};
    form.value = &kOtherShare;
  }
  return form;
}

// Undoes the halving of a block's outputs.
void undo_rescaling(TheirTensor& form, int64_t block, int64_t every) {
  const bool output = form.name.ends_with("time_mix_output.weight") || form.name.ends_with("channel_mix_value.weight");
  if (!output || every == 0 || block < every) return;
  form.change = [factor = std::exp2(block / every)](const Tensor& x) { return x * factor; };
}

// What RWKV-6 and RWKV-7 share.
void read_rwkv_block(GgufKeys& keys, GgufConfig& read, int64_t shifts) {
  const int64_t said = keys.size("token_shift_count", shifts);
  keys.file.fail_if(said != shifts, "has \"", keys.key("token_shift_count"), "\" ", said, ", expected ", shifts);
  read.layout.head_norm_eps = kRwkvHeadNormEps;
}

}  // namespace

RenamedWeights gguf_rwkv_weights(const RenamedModel& folder, const GgufLayout& layout) {
  RenamedWeights weights;
  for (const auto& [ours, forms] : folder.weights.list) {
    const TheirTensor& theirs = forms.front();
    if (const auto outside = kRwkvOutside.find(theirs.name); outside != kRwkvOutside.end()) {
      weights.map(ours, outside->second, theirs.shape);
      continue;
    }
    const size_t begin = theirs.name.find("layers.") + 7, end = theirs.name.find('.', begin);
    const std::string block = theirs.name.substr(begin, end - begin);
    TheirTensor form = rwkv_form(theirs.name.substr(end + 1), theirs, folder.config.dim);
    undo_rescaling(form, std::stoll(block), layout.rescale_every);
    form.name = concat("blk.", block, ".", form.name);
    weights.list.push_back({ours, {std::move(form)}});
  }
  return weights;
}

void join_rwkv6_mixes(TheirTensors& tensors) {
  std::map<std::string, Tensors> joined;
  for (int64_t block = 0;; ++block) {
    const std::string mix = concat("blk.", block, ".time_mix_lerp_");
    Tensors rows;
    for (const char* which : {"w", "k", "v", "r", "g"}) {
      const std::string name = concat(mix, which, ".weight");
      if (!tensors.kinds.contains(name)) break;
      const int64_t size = c10::multiply_integers(tensors.kinds.at(name).shape);
      if (!rows.empty() && size != rows[0].numel()) break;
      rows.push_back(tensors.read({.name = name, .shape = {1, 1, size}}));
    }
    if (rows.size() != 5) break;
    for (const char* which : {"w", "k", "v", "r", "g"}) tensors.kinds.erase(concat(mix, which, ".weight"));
    tensors.kinds[mix + "fused.weight"] = {{5, 1, 1, rows[0].size(2)}, rows[0].scalar_type()};
    joined[mix + "fused.weight"] = rows;
  }
  if (joined.empty()) return;
  tensors.read = [=, others = tensors.read](const TheirTensor& form) {
    const auto found = joined.find(form.name);
    return found == joined.end() ? others(form) : at::stack(found->second);
  };
}

void read_gguf_rwkv6(GgufKeys& keys, GgufConfig& read) {
  read_rwkv_block(keys, read, 2);
  keys.copy(kRwkv6Names, read.config);
  read.layout.rescale_every = keys.size("rescale_every_n_layers", 0);
  const int64_t head = keys.size("wkv.head_size"), dim = read.config["hidden_size"].get<int64_t>();
  keys.file.fail_if(head < 1 || dim % head != 0, "has \"", keys.key("wkv.head_size"), "\" ", head,
                    ", which does not divide ", dim);
  read.config.update(
      {{"model_type", "rwkv6"}, {"expand_k", 1.0}, {"expand_v", 1.0}, {"num_heads", dim / head}, {"norm_first", true}});
}

void read_gguf_rwkv7(GgufKeys& keys, GgufConfig& read) {
  read_rwkv_block(keys, read, 2);
  keys.copy(kRwkv7Names, read.config);
  read.config.update({{"model_type", "rwkv7"}, {"norm_first", true}});
  // The first block's values mix with nothing.
  for (const char* part : {"v0", "v1", "v2"}) read.idle.push_back(concat("blk.0.time_mix_", part, ".weight"));
}

}  // namespace cortado
