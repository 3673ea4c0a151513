// Zamba2 of transformers: Mamba-2, and in some layers one of a few transformer blocks in front of it. A block is used by
// several layers in turn, each with low-rank matrices of its own. Here every such layer has its own weights.
#include <cmath>

#include "cortado/models/pretrained/architectures/layered.h"
#include "cortado/models/pretrained/architectures/mamba.h"
#include "cortado/models/pretrained/rope.h"

namespace cortado {
namespace {

RenamedMixer read_zamba2_mamba(JsonReader& config, int64_t dim) {
  const int64_t heads = config.integer("n_mamba_heads", 1, kMostHeads, 8);
  const Mamba2Sizes sizes = {.expand = config.integer("mamba_expand", 1, 64, 2),
                             .heads = heads,
                             .groups = config.integer("mamba_ngroups", 1, 65536, 1),
                             .state = config.integer("mamba_d_state", 1, 65536, 64),
                             .taps = config.integer("mamba_d_conv", 1, 64, 4),
                             .bias = config.boolean("add_bias_linear", false),
                             .conv_bias = true,  // whatever "use_conv_bias" says
                             .norm_eps = 1e-5};  // whatever the config's other norms have
  const int64_t width = sizes.expand * dim;
  config.fail_if(width % heads != 0, "a width of ", width, " is not divisible by n_mamba_heads (", heads, ")");
  config.fail_if(heads % sizes.groups != 0, "n_mamba_heads (", heads, ") is not divisible by mamba_ngroups (",
                 sizes.groups, ")");
  RenamedMixer mixer = mamba2_mixer(sizes, dim);
  mixer.settings["step_min"] = config.number("time_step_min", 0.0, 1e3, 0.001);
  return mixer;
}

// Sizes of the transformer blocks. Their attention's input is twice as wide as the model.
struct Zamba2Block {
  int64_t dim, heads, head, hidden, rank;
  bool adapted;  // q, k and v have low-rank matrices; gate and up always have
  bool bias;

  int64_t wide() const { return 2 * dim; }
};

Zamba2Block read_zamba2_block(JsonReader& config, int64_t dim) {
  const int64_t heads = config.integer("num_attention_heads", 1, kMostHeads, 32);
  config.fail_if(2 * dim % heads != 0, "twice hidden_size (", 2 * dim, ") is not divisible by num_attention_heads (",
                 heads, ")");
  expect(config, "num_key_value_heads", heads);
  expect(config, "hidden_act", "gelu");
  return {dim,
          heads,
          2 * dim / heads,
          config.integer("intermediate_size", 1, kWidest, 4 * dim),
          config.integer("adapter_rank", 1, kWidest, 128),
          config.boolean("use_shared_attention_adapter", false),
          config.boolean("add_bias_linear", false)};
}

// The part that layers share, with the low-rank matrices of its `use`-th use.
RenamedWeights zamba2_block(const Zamba2Block& block, size_t use) {
  const auto [dim, heads, head, hidden, rank, adapted, bias] = block;
  RenamedWeights part;
  part.norm("attention_norm", "input_layernorm", block.wide());
  for (const char* name : {"q", "k", "v"}) {
    const std::string ours = concat("attention.", name), theirs = concat("self_attn.linear_", name, "_adapter_list.");
    part.linear(ours, concat("self_attn.", name, "_proj"), block.wide(), block.wide());
    if (!adapted) continue;
    part.plus(ours + ".weight",
              {concat(theirs, use, ".1.weight"), concat(theirs, use, ".0.weight"), block.wide(), rank, block.wide()});
  }
  part.linear("attention.o", "self_attn.o_proj", dim, block.wide());
  part.norm("feed_forward_norm", "pre_ff_layernorm", dim);
  part.gated_joint("feed_forward", "feed_forward.gate_up_proj.weight", "feed_forward.down_proj.weight", dim, hidden);
  const std::string theirs = concat("feed_forward.gate_up_proj_adapter_list.", use);
  for (const auto& [name, begin] : {std::pair("feed_forward.gate", int64_t{0}), std::pair("feed_forward.up", hidden)}) {
    part.plus(concat(name, ".weight"), {theirs + ".1.weight", theirs + ".0.weight", 2 * hidden, rank, dim});
    if (!bias) continue;
    part.map(concat(name, ".bias"), "feed_forward.gate_up_proj.bias", {2 * hidden},
             [=](const Tensor& x) { return x.narrow(0, begin, hidden); });
  }
  if (bias) part.map("feed_forward.down.bias", "feed_forward.down_proj.bias", {dim});
  return part;
}

// The settings of a layer: without a block, those of the first layer.
Json zamba2_settings(const RenamedMixer& mamba, double norm_eps) {
  return {{"mixer", "serial_hybrid"}, {"recall", false}, {"norm_eps", norm_eps}, {"recurrence", mamba.settings}};
}

Json zamba2_settings(const RenamedMixer& mamba, double norm_eps, const Zamba2Block& block, bool rotary) {
  Json settings = zamba2_settings(mamba, norm_eps);
  settings["attention"] = {{"heads", block.heads},
                           {"head_dim", block.head},
                           {"scale", 1 / std::sqrt(static_cast<double>(block.head) / 2)},
                           {"rotary", rotary}};
  settings.update({{"recall", true}, {"feed_forward", block.hidden}, {"bias", block.bias}});
  return settings;
}

// The layers, one by one.
class Zamba2 {
 public:
  explicit Zamba2(JsonReader& config)
      : sizes_(read_sizes(config)),
        json_(config_of(sizes_, config.boolean("tie_word_embeddings", true))),
        mamba_(read_zamba2_mamba(config, sizes_.dim)),
        block_(read_zamba2_block(config, sizes_.dim)),
        blocks_(config.integer("num_mem_blocks", 1, kDeepest, 1)),
        rotary_(config.boolean("use_mem_rope", false)) {
    norm_eps_ = json_["norm_eps"] = config.number("rms_norm_eps", 0.0, 1.0, 1e-5);
    json_["context"] = config.integer("max_position_embeddings", 0, int64_t{1} << 40, 4096);
    json_["feed_forward"] = {{"type", "none"}};
    json_["layers"] = Json::array();
    if (rotary_) write_rope(read_whole_rope(config), json_);
    expect(config, "use_long_context", false);
  }

  int64_t layers() const { return sizes_.layers; }

  // All but the first one, whose input is the embedding, are Mamba-2 behind the model's norm.
  void add_mamba() {
    const auto layer = json_["layers"].size();
    const bool first = layer == 0;
    json_["layers"].push_back({{"mixer", first ? zamba2_settings(mamba_, norm_eps_) : mamba_.settings}});
    if (first) json_["layers"].back()["pre_norm"] = false;
    RenamedWeights own;
    own.norm(first ? "mixer.norm" : "mixer_norm", "input_layernorm", sizes_.dim);
    own.within(first ? "mixer.recurrence" : "mixer", "mamba", mamba_);
    weights_.within(concat("layers.", layer), concat("model.layers.", layer), own);
  }

  void add_hybrid() {
    const auto layer = json_["layers"].size(), use = uses_.size();
    uses_.push_back(layer);
    json_["layers"].push_back({{"mixer", zamba2_settings(mamba_, norm_eps_, block_, rotary_)}, {"pre_norm", false}});
    RenamedWeights own;
    own.linear("mixer.out", "linear", sizes_.dim, sizes_.dim);
    own.norm("mixer.norm", "mamba_decoder.input_layernorm", sizes_.dim);
    own.within("mixer.recurrence", "mamba_decoder.mamba", mamba_);
    weights_.within(concat("layers.", layer), concat("model.layers.", layer), own);
    // The tensors lie in the first layer that uses the block. transformers does not tie those of a model whose head is not
    // tied: then every layer has its own, low-rank matrices of other uses included.
    const size_t block = use % static_cast<size_t>(blocks_);
    RenamedWeights shared;
    for (const size_t source : {layer, uses_[block]}) {
      RenamedWeights form;
      form.within(concat("layers.", layer, ".mixer"), concat("model.layers.", source, ".shared_transformer"),
                  zamba2_block(block_, use));
      for (const RenamedWeight& weight : form.list) shared.or_map(weight.ours, weight.forms.front());
    }
    for (RenamedWeight& weight : shared.list) weights_.list.push_back(std::move(weight));
  }

  RenamedModel model(JsonReader& config) && {
    const ModelConfig read = ModelConfig::from_json(json_, config.place());
    weights_.map("embedding.weight", "model.embed_tokens.weight", {sizes_.vocabulary, sizes_.dim});
    weights_.norm("norm", "model.final_layernorm", sizes_.dim);
    if (!read.tied) weights_.map("head.weight", "lm_head.weight", {sizes_.vocabulary, sizes_.dim});
    return {.source = {}, .config = read, .weights = std::move(weights_), .idle = low_rank_names(), .left_out = {}};
  }

 private:
  // Every layer's copy of a block may have the low-rank matrices of all of the block's uses.
  std::vector<std::string> low_rank_names() const {
    std::vector<std::string> names;
    for (const size_t layer : uses_) {
      for (size_t use = 0; use < uses_.size(); ++use) {
        for (const char* map :
             {"self_attn.linear_q", "self_attn.linear_k", "self_attn.linear_v", "feed_forward.gate_up_proj"}) {
          const std::string list = concat("model.layers.", layer, ".shared_transformer.", map, "_adapter_list.", use);
          for (const char* part : {".0.weight", ".1.weight"}) names.push_back(list + part);
        }
      }
    }
    return names;
  }

  ModelSizes sizes_;
  Json json_;
  RenamedMixer mamba_;
  Zamba2Block block_;
  int64_t blocks_;
  bool rotary_;
  double norm_eps_;
  RenamedWeights weights_;
  std::vector<size_t> uses_;  // the layers with a block
};

RenamedModel read_zamba2(JsonReader& config) {
  Zamba2 read(config);
  const auto hybrid =
      read_layer_types(config, read.layers(), {"hybrid"}, {"linear_attention", "mamba"}, "layers_block_type");
  config.fail_if(!hybrid, "missing key \"layers_block_type\"");
  for (const bool here : *hybrid) here ? read.add_hybrid() : read.add_mamba();
  return std::move(read).model(config);
}

}  // namespace

std::vector<Architecture> zamba2_architectures() { return {{"zamba2", read_zamba2}}; }

}  // namespace cortado
