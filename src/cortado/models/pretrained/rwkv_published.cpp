// RWKV-6 and RWKV-7 as their authors publish them: no sizes in a config, and names of their own. The tensors get the
// names and shapes of flash-linear-attention's folders, and the sizes are those of the tensors.
#include "cortado/models/pretrained/rwkv_published.h"

#include <regex>

#include "cortado/base/error.h"
#include "cortado/models/pretrained/gguf_names.h"
#include "cortado/models/pretrained/gguf_renamed.h"

namespace cortado {
namespace {

// Beginnings of names in the authors' files, in transformers' folders of RWKV-6, and here, in this order.
const std::vector<std::pair<std::string, std::string>> kBeginnings = {
    {"rwkv.blocks.", "blocks."},   {"rwkv.embeddings.", "emb."}, {"rwkv.ln_out.", "ln_out."},
    {"emb.", "model.embeddings."}, {"ln_out.", "model.norm."},   {"head.", "lm_head."},
    {"blocks.", "model.layers."}};
// Parts of a block's names, in this order. Converters for other programs write time_mix and time_first.
const std::vector<std::pair<std::string, std::string>> kParts = {
    {".attention.", ".att."},         {".feed_forward.", ".ffn."},       {".pre_ln.", ".ln0."},
    {".time_mix_", ".time_maa_"},     {".time_first", ".time_faaaa"},    {".att.", ".attn."},
    {".ln0.", ".pre_norm."},          {".ln1.", ".attn_norm."},          {".ln2.", ".ffn_norm."},
    {".attn.ln_x.", ".attn.g_norm."}, {".attn.output.", ".attn.o_proj."}};
const std::vector<std::pair<std::string, std::string>> kParts7 = {
    {".attn.receptance.", ".attn.r_proj."}, {".attn.key.", ".attn.k_proj."}, {".attn.value.", ".attn.v_proj."}};
const std::vector<std::pair<std::string, std::string>> kParts6 = {
    {".attn.receptance.", ".attn.r_proj.linear."},
    {".attn.key.", ".attn.k_proj.linear."},
    {".attn.value.", ".attn.v_proj.linear."},
    {".attn.gate.", ".attn.g_proj.linear."},
    {".attn.time_maa_x", ".attn.x_proj.0.mu"},
    {".attn.time_maa_w1", ".attn.x_proj.0.linear.weight"},
    {".attn.time_maa_w2", ".attn.x_proj.2.weight"},
    {".attn.time_decay_w1", ".attn.w_proj.linear.lora.0.weight"},
    {".attn.time_decay_w2", ".attn.w_proj.linear.lora.2.weight"},
    {".attn.time_decay", ".attn.w_proj.linear.lora.2.bias"},
    {".attn.time_faaaa", ".attn.bonus"},
    {".ffn.key.", ".ffn.key.linear."},
    {".ffn.receptance.", ".ffn.receptance.linear."},
    {".ffn.time_maa_k", ".ffn.key.mu"},
    {".ffn.time_maa_r", ".ffn.receptance.mu"}};

using Names = std::vector<std::pair<std::string, std::string>>;

void rename(std::string& name, const Names& names, bool beginnings) {
  for (const auto& [theirs, ours] : names) {
    const size_t at = name.find(theirs);
    if (at != std::string::npos && (!beginnings || at == 0)) name.replace(at, theirs.size(), ours);
  }
}

std::string renamed(std::string name, bool seven) {
  rename(name, kBeginnings, true);
  rename(name, kParts, false);
  if (!seven) {
    rename(name, kParts6, false);
    return name;
  }
  rename(name, kParts7, false);
  // A low-rank map's bias and its two matrices, "w0", "w1" and "w2".
  static const std::regex low_rank(R"((\.attn\.)([wvag])([012])$)");
  std::smatch found;
  if (!std::regex_search(name, found, low_rank)) return name;
  const std::string number = found[3] == "0" ? "2.bias" : found[3] == "1" ? "0.weight" : "2.weight";
  return concat(found.prefix().str(), ".attn.", found[2].str(), "_lora.lora.", number);
}

// A matrix that is [out, in] in the folder; files have either order. Square ones are [in, out].
Tensor as_out_in(const Tensor& x, int64_t out, int64_t in) {
  return x.size(0) == out && x.size(1) == in && out != in ? x : x.transpose(0, 1);
}

// RWKV-6's mixes are w, k, v, r, g in the authors' tensors, and r, w, k, v, g in the folder.
Tensor mixes_of_folder(const Tensor& x) { return x.index_select(0, at::tensor({3, 0, 1, 2, 4}, at::kLong)); }

struct Sizes {
  int64_t dim = 0, rank = 0;  // D; RWKV-6: the rank of one of the five mixes
};

// The tensor in the folder's shape; names that need no change keep theirs.
Tensor in_folder_shape(const std::string& name, const Tensor& x, const Sizes& sizes) {
  const auto is = [&](const char* end) { return name.ends_with(end); };
  if (x.dim() == 2 && is(".lora.0.weight")) return as_out_in(x, x.numel() / sizes.dim, sizes.dim);
  if (x.dim() == 2 && is(".lora.2.weight")) return as_out_in(x, sizes.dim, x.numel() / sizes.dim);
  if (x.dim() == 2 && is(".attn.x_proj.0.linear.weight"))
    return mixes_of_folder(as_out_in(x, 5 * sizes.rank, sizes.dim).unflatten(0, {5, -1})).flatten(0, 1);
  if (x.dim() == 3 && is(".attn.x_proj.2.weight")) {
    const bool up = x.size(1) == sizes.rank;  // [5, rank, D]
    return mixes_of_folder(up ? x : x.transpose(1, 2)).permute({2, 0, 1}).flatten(1, 2);
  }
  const bool shares = name.find(".attn.x_") != std::string::npos && !is(".mu");
  return x.dim() == 3 && x.size(0) == 1 && x.size(1) == 1 && !shares ? x.flatten() : x;
}

// Stacks the five mixes of each block of RWKV-6.
void join_mixes(std::map<std::string, Tensor>& tensors) {
  for (int64_t block = 0;; ++block) {
    Tensors rows;
    for (const char* which : {"r", "w", "k", "v", "g"}) {
      const auto found = tensors.find(concat("model.layers.", block, ".attn.time_maa_", which));
      if (found == tensors.end()) return;
      rows.push_back(found->second);
    }
    for (const char* which : {"r", "w", "k", "v", "g"})
      tensors.erase(concat("model.layers.", block, ".attn.time_maa_", which));
    tensors[concat("model.layers.", block, ".attn.x_bias")] = at::stack(rows);
  }
}

const Tensor& tensor_of(const std::map<std::string, Tensor>& tensors, const std::string& name, int64_t dimensions,
                        const std::string& source) {
  const auto found = tensors.find(name);
  fail_input_if(found == tensors.end(), "[import] ", source, " has no \"", name, "\" (its name here)");
  fail_input_if(found->second.dim() != dimensions || found->second.numel() == 0, "[import] ", source, ": \"", name,
                "\" (its name here) is ", found->second.sizes(), ", expected ", dimensions, " dimensions");
  return found->second;
}

Json config_of_tensors(const std::map<std::string, Tensor>& tensors, bool seven, const std::string& source) {
  const auto size = [&](const std::string& name, int64_t dimension) {
    return tensor_of(tensors, name, 2, source).size(dimension);
  };
  const std::string first = "model.layers.0.";
  int64_t layers = 0;
  while (tensors.contains(concat("model.layers.", layers, ".ffn_norm.weight"))) ++layers;
  Json config = {{"model_type", seven ? "rwkv7" : "rwkv6"},
                 {"vocab_size", size("model.embeddings.weight", 0)},
                 {"hidden_size", size("model.embeddings.weight", 1)},
                 {"num_hidden_layers", layers},
                 {"intermediate_size", size(first + "ffn.value.weight", 1)},
                 {"norm_first", tensors.contains(first + "pre_norm.weight")}};
  if (!seven) {
    config.update({{"expand_k", 1.0},
                   {"expand_v", 1.0},
                   {"num_heads", size(first + "attn.bonus", 0)},
                   {"proj_low_rank_dim", size(first + "attn.x_proj.0.linear.weight", 0) / 5},
                   {"gate_low_rank_dim", size(first + "attn.w_proj.linear.lora.0.weight", 0)}});
    return config;
  }
  config["head_dim"] = size(first + "attn.r_k", 1);
  for (const char* which : {"w", "a", "g"}) {
    const std::string key = *which == 'w' ? "decay" : *which == 'g' ? "gate" : which;
    config[key + "_low_rank_dim"] = size(concat(first, "attn.", which, "_lora.lora.0.weight"), 0);
  }
  if (layers > 1) config["v_low_rank_dim"] = size("model.layers.1.attn.v_lora.lora.0.weight", 0);
  return config;
}

// The names that tell RWKV-7 and RWKV-6 from each other and from earlier ones.
bool has_part(const std::map<std::string, Tensor>& tensors, const char* inside) {
  return tensors.contains(concat("blocks.0.att.", inside)) ||
         tensors.contains(concat("rwkv.blocks.0.attention.", inside));
}

}  // namespace

bool is_published_rwkv(const std::map<std::string, Tensor>& tensors) { return has_part(tensors, "key.weight"); }

PublishedRwkv read_published_rwkv(const std::map<std::string, Tensor>& tensors, const std::string& source) {
  const bool seven = has_part(tensors, "r_k");
  fail_input_if(!seven && !has_part(tensors, "time_maa_x") && !has_part(tensors, "time_mix_x"), "[import] ", source,
                " is an RWKV before RWKV-6: of these, transformers' folders of RWKV-4 are read");
  PublishedRwkv read;
  for (const auto& [name, tensor] : tensors) read.tensors[renamed(name, seven)] = tensor;
  Sizes sizes = {.dim = tensor_of(read.tensors, "model.embeddings.weight", 2, source).size(1)};
  if (!seven) {
    const auto& down = tensor_of(read.tensors, "model.layers.0.attn.x_proj.0.linear.weight", 2, source);
    sizes.rank = down.numel() / sizes.dim / 5;
    fail_input_if(down.numel() != 5 * sizes.rank * sizes.dim, "[import] ", source, ": the matrix of the mixes is ",
                  down.sizes(), ", which are not five of width ", sizes.dim);
  }
  for (auto& [name, tensor] : read.tensors) tensor = in_folder_shape(name, tensor, sizes);
  if (!seven) join_mixes(read.tensors);
  // The first block's values mix with nothing.
  for (const char* part : {"0.weight", "2.weight", "2.bias"})
    read.tensors.erase(concat("model.layers.0.attn.v_lora.lora.", part));
  read.model =
      gguf_folder_model(config_of_tensors(read.tensors, seven, source), {.head_norm_eps = kRwkvHeadNormEps}, source);
  return read;
}

}  // namespace cortado
