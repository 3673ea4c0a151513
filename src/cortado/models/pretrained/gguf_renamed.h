// GGUF files of the models that renamed.h reads from Hugging Face folders: llama.cpp's converter made their tensors from
// those of such a folder.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "cortado/formats/gguf/file.h"
#include "cortado/models/pretrained/renamed.h"

namespace cortado {

// How the tensors of an architecture's files differ from the folder's.
struct GgufLayout {
  const char *feed_forward_norm = "ffn_norm", *last_norm = "output_norm";
  bool bare_norm = false;  // the feed-forward's norm has no suffix
  bool separate_blocks =
      false;              // a feed-forward is a block of its own, whose tensors the folder has in a mixer's place
  bool one_plus = false;  // norms hold 1 + w
  int64_t groups = 0;     // Mamba-2: a, d and norm have one dimension more; 0: they do not
  int64_t paired_heads = 0, paired_key_heads = 0;  // q's and k's rows are ordered as pairs; 0: as halves
  // Gated DeltaNet's: key heads, and the value heads of each.
  int64_t key_heads = 0, per_key = 0, key_dim = 0, value_dim = 0;
  bool tiled = false;  // value heads with equal numbers within their key heads are neighbours, not those of a key head
  bool joint_gates = false;   // beta and the decay are one map
  double head_norm_eps = 0;   // RWKV's: the epsilon of the norms over heads, whatever the folder says; 0: another model
  int64_t rescale_every = 0;  // RWKV-6: blocks after which the stream and later blocks' outputs are halved; 0: none
};

// What a file's metadata say: the values of config.json of the folder, with "model_type", and the layout.
struct GgufConfig {
  Json config;
  GgufLayout layout = {};
  RotaryScaling scaling = {};
  int64_t blocks = 0;                  // those of the model; the file's others are for multi-token prediction
  std::vector<std::string> idle = {};  // tensors that are not used
};
// nullopt for an architecture that is not read like this. Throws InputError for settings that are not supported.
std::optional<GgufConfig> gguf_config(const GgufFile& file);
// "mamba, mamba2, ...", for error messages.
std::string renamed_gguf_architectures();

// The weights of a model that was read from a folder, with the file's tensors in place of the folder's. Their `change`
// only moves numbers, but for norms without weights.
RenamedWeights gguf_weights(const RenamedModel& folder, const GgufLayout& layout);

// The folder's model, with what all files of the architecture fix.
RenamedModel gguf_folder_model(const Json& config, const GgufLayout& layout, const std::string& place);
// gguf_weights() of RWKV.
RenamedWeights gguf_rwkv_weights(const RenamedModel& folder, const GgufLayout& layout);
// Early files of RWKV-6 have a tensor per mix: shows the five of each block as the one that later files have.
void join_rwkv6_mixes(TheirTensors& tensors);

// nullopt for an architecture that is not read like this.
std::optional<RenamedSource> renamed_gguf(const std::shared_ptr<const GgufFile>& file);

}  // namespace cortado
