#include "cortado/models/pretrained/renamed.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "cortado/base/error.h"
#include "cortado/base/signals.h"
#include "cortado/base/utf8.h"
#include "cortado/models/pretrained/folder.h"
#include "cortado/models/pretrained/gguf_renamed.h"
#include "cortado/models/pretrained/pretrained.h"
#include "cortado/models/pretrained/quantised.h"
#include "cortado/models/pretrained/rwkv_published.h"

namespace cortado {

void RenamedWeights::or_map(const std::string& ours, TheirTensor theirs) {
  const auto found = std::ranges::find(list.rbegin(), list.rend(), ours, &RenamedWeight::ours);
  if (found == list.rend()) {
    list.push_back({ours, {std::move(theirs)}});
  } else {
    found->forms.push_back(std::move(theirs));
  }
}

void RenamedWeights::linear(const std::string& ours, const std::string& theirs, int64_t out, int64_t in, bool bias) {
  map(ours + ".weight", theirs + ".weight", {out, in});
  if (bias) map(ours + ".bias", theirs + ".bias", {out});
}

void RenamedWeights::convolution(const std::string& ours, const std::string& theirs, int64_t channels, int64_t taps,
                                 bool bias) {
  map(ours + ".weight", theirs + ".weight", {channels, 1, taps}, [](const Tensor& x) { return x.squeeze(1); });
  if (bias) map(ours + ".bias", theirs + ".bias", {channels});
}

void RenamedWeights::qkv_convolutions(int64_t keys, int64_t values, int64_t taps) {
  const Shape joint = {2 * keys + values, 1, taps};
  int64_t begin = 0;
  for (const auto& [name, rows] : {std::pair("q", keys), std::pair("k", keys), std::pair("v", values)}) {
    convolution(concat(name, "_conv"), concat(name, "_conv1d"), rows, taps, /*bias=*/false);
    or_map(concat(name, "_conv.weight"),
           {"conv1d.weight", joint, [=](const Tensor& x) { return x.narrow(0, begin, rows).squeeze(1); }});
    begin += rows;
  }
}

void RenamedWeights::norm(const std::string& ours, const std::string& theirs, int64_t dim, bool zero_centred) {
  // The sum is kept in float32, because 16 bits would round it.
  const auto add_one = [](const Tensor& x) { return x.to(at::kFloat) + 1; };
  map(ours + ".weight", theirs + ".weight", {dim}, zero_centred ? add_one : std::function<Tensor(const Tensor&)>());
}

void RenamedWeights::gated(const std::string& ours, const std::string& theirs, int64_t dim, int64_t hidden, bool bias,
                           const GatedNames& names) {
  linear(ours + ".gate", concat(theirs, ".", names.gate), hidden, dim, bias);
  linear(ours + ".up", concat(theirs, ".", names.up), hidden, dim, bias);
  linear(ours + ".down", concat(theirs, ".", names.down), dim, hidden, bias);
}

void RenamedWeights::gated_joint(const std::string& ours, const std::string& gate_up, const std::string& down,
                                 int64_t dim, int64_t hidden) {
  for (const auto& [name, begin] : {std::pair(".gate.weight", int64_t{0}), std::pair(".up.weight", hidden)}) {
    map(ours + name, gate_up, {2 * hidden, dim}, [=](const Tensor& x) { return x.narrow(0, begin, hidden); });
  }
  map(ours + ".down.weight", down, {dim, hidden});
}

void RenamedWeights::experts(const std::string& theirs, const ExpertSizes& sizes, const GatedNames& names) {
  for (int64_t i = 0; i < sizes.count; ++i) {
    gated(concat("feed_forward.experts.", i), concat(theirs, ".", i), sizes.dim, sizes.hidden, /*bias=*/false, names);
  }
  joint_experts(theirs + ".gate_up_proj", theirs + ".down_proj", sizes);
}

void RenamedWeights::joint_experts(const std::string& gate_up, const std::string& down, const ExpertSizes& sizes) {
  const auto [count, dim, hidden] = sizes;
  for (int64_t i = 0; i < count; ++i) {
    const std::string ours = concat("feed_forward.experts.", i);
    const auto rows = [i](int64_t begin, int64_t size) {
      return [=](const Tensor& x) { return x.select(0, i).narrow(0, begin, size); };
    };
    or_map(ours + ".gate.weight", {gate_up, {count, 2 * hidden, dim}, rows(0, hidden)});
    or_map(ours + ".up.weight", {gate_up, {count, 2 * hidden, dim}, rows(hidden, hidden)});
    or_map(ours + ".down.weight", {down, {count, dim, hidden}, rows(0, dim)});
  }
}

void RenamedWeights::then(const std::string& ours, const std::function<Tensor(const Tensor&)>& change) {
  for (RenamedWeight& weight : list) {
    if (weight.ours != ours || !change) continue;
    for (TheirTensor& form : weight.forms) {
      const auto first = form.change;
      form.change = [=](const Tensor& x) { return change(first ? first(x) : x); };
    }
  }
}

void RenamedWeights::plus(const std::string& ours, const LowRank& product) {
  for (RenamedWeight& weight : list) {
    if (weight.ours != ours) continue;
    for (TheirTensor& form : weight.forms) form.plus = product;
  }
}

void RenamedWeights::within(const std::string& ours, const std::string& theirs, const RenamedWeights& part) {
  for (RenamedWeight weight : part.list) {
    weight.ours = concat(ours, ".", weight.ours);
    for (TheirTensor& form : weight.forms) {
      form.name = concat(theirs, ".", form.name);
      if (!form.plus) continue;
      form.plus->up = concat(theirs, ".", form.plus->up);
      form.plus->down = concat(theirs, ".", form.plus->down);
    }
    list.push_back(std::move(weight));
  }
}

void RenamedWeights::or_within(const std::string& prefix, const std::string& other) {
  for (RenamedWeight& weight : list) {
    const std::vector<TheirTensor> forms = weight.forms;
    for (TheirTensor form : forms) {
      if (!form.name.starts_with(prefix)) continue;
      form.name.replace(0, prefix.size(), other);
      weight.forms.push_back(std::move(form));
    }
  }
}

void expect(JsonReader& config, const char* key, const Json& wanted) {
  const Json given = config.any(key);
  config.fail_if(!given.is_null() && given != wanted, "\"", key, "\": ", given.dump(), " is not supported, only ",
                 wanted.dump());
}

void expect_silu(JsonReader& config) {
  const std::string activation = config.text("hidden_act", "silu");
  config.fail_if(activation != "silu" && activation != "swish", "activation \"", activation, "\" is not supported");
}

const char* spelled(JsonReader& config, std::initializer_list<const char*> keys) {
  const auto* found = std::ranges::find_if(keys, [&](const char* key) { return config.has(key); });
  return found == keys.end() ? *(keys.end() - 1) : *found;
}

int64_t head_size(JsonReader& config, int64_t width, int64_t heads) {
  config.fail_if(width % heads != 0, "a width of ", width, " is not divisible by num_heads (", heads, ")");
  return width / heads;
}

ModelSizes read_sizes(JsonReader& config) {
  return {config.integer("hidden_size", 1, kWidest), config.integer("num_hidden_layers", 1, kDeepest),
          config.integer("vocab_size", 1, int64_t{1} << 31)};
}

Json config_of(const ModelSizes& sizes, bool tied) {
  return {{"vocabulary", sizes.vocabulary}, {"dim", sizes.dim}, {"heads", 1}, {"norm", "rms"}, {"positions", "none"},
          {"embedding", {{"tied", tied}}}};
}

namespace {

const std::vector<Architecture>& architectures() {
  static const std::vector<Architecture> all = [] {
    std::vector<Architecture> list;
    for (const auto& family :
         {mamba_architectures, mamba_ssm_architectures, mamba_hybrid_architectures,
          flash_linear_attention_architectures, rwkv_architectures, recurrent_gemma_architectures,
          qwen3_next_architectures, qwen3_moe_architectures, lfm2_architectures, olmo_architectures,
          falcon_h1_architectures, nemotron_h_architectures, kimi_linear_architectures, minimax_architectures,
          gpt_oss_architectures, zamba2_architectures, llama4_architectures}) {
      for (Architecture& architecture : family()) list.push_back(std::move(architecture));
    }
    return list;
  }();
  return all;
}

void set_source(RenamedModel& model, const std::string& source, const std::string& name) {
  model.source = source;
  model.config.name = utf8_valid_prefix(name) == name.size() ? name : "imported";
}

std::string name_of_folder(const std::string& folder) {
  return std::filesystem::path(folder + "/.").lexically_normal().parent_path().filename().string();
}

// The authors' RWKV, whose tensors say its sizes; nullopt for tensors of other models.
std::optional<RenamedSource> published_rwkv(const std::map<std::string, Tensor>& tensors, const std::string& folder) {
  if (!is_published_rwkv(tensors)) return std::nullopt;
  PublishedRwkv read = read_published_rwkv(tensors, folder);
  set_source(read.model, folder, name_of_folder(folder));
  return RenamedSource{read.model, [views = read.tensors] {
                         TheirTensors all;
                         for (const auto& [name, view] : views)
                           all.kinds[name] = {view.sizes().vec(), view.scalar_type()};
                         all.read = [=](const TheirTensor& form) {
                           const Tensor& view = views.at(form.name);
                           return form.index ? view.select(0, *form.index) : view;
                         };
                         return all;
                       }};
}

std::optional<RenamedSource> renamed_folder(const std::string& folder) {
  JsonReader config(folder_config(folder), folder + "/config.json");
  if (config.text("model_type", "") == "rwkv6") {
    if (auto published = published_rwkv(folder_tensors(folder), folder)) return published;
  }
  auto model = read_architecture(config);
  if (!model) return std::nullopt;
  set_source(*model, config.place(), name_of_folder(folder));
  const BlockScales sizes = read_quantisation(config);
  return RenamedSource{*model, [=] {
                         auto views = folder_tensors(folder);
                         BlockScales blocks = sizes;
                         blocks.take(views, folder);
                         TheirTensors tensors;
                         for (const auto& [name, view] : views) tensors.kinds[name] = blocks.decoded_kind(name, view);
                         tensors.read = [=](const TheirTensor& form) {
                           return blocks.decode(form.name, views.at(form.name), form.index);
                         };
                         return tensors;
                       }};
}

// nullopt for models of other kinds, and for what is no model.
std::optional<RenamedSource> renamed_source(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::exists(path + "/config.json", ignored)) return renamed_folder(path);
  if (std::filesystem::is_directory(path, ignored)) return published_rwkv(bare_tensors(path), path);
  if (!std::filesystem::is_regular_file(path, ignored) || !is_gguf(path)) return std::nullopt;
  auto source = renamed_gguf(std::make_shared<const GgufFile>(path));
  if (source) set_source(source->model, path, std::filesystem::path(path).stem().string());
  return source;
}

// The form of the weight that the folder has; the first form if it has none.
const TheirTensor& form_in(const RenamedWeight& weight, const TheirTensors& tensors) {
  for (const TheirTensor& form : weight.forms) {
    if (tensors.kinds.contains(form.name)) return form;
  }
  return weight.forms.front();
}

bool is_left_out(const RenamedModel& model, const std::string& tensor) {
  return std::ranges::any_of(model.left_out, [&](const std::string& prefix) { return tensor.starts_with(prefix); });
}

// The left-out parts that the folder has: "mtp. (12 tensors), model.visual. (150 tensors)".
std::string left_out_of(const RenamedModel& model, const TheirTensors& tensors) {
  std::string list;
  for (const std::string& prefix : model.left_out) {
    const auto count =
        std::ranges::count_if(tensors.kinds, [&](const auto& it) { return it.first.starts_with(prefix); });
    if (count > 0) list += concat(list.empty() ? "" : ", ", prefix, " (", count, " tensors)");
  }
  return list;
}

// Checks that every weight has its tensor, and every tensor a use.
void check_tensors(const RenamedModel& model, const TheirTensors& tensors) {
  const std::string where = concat("[import] ", model.source, ": ");
  std::set<std::string> used;
  const auto check = [&](const std::string& name, const Shape& expected) {
    const auto found = tensors.kinds.find(name);
    fail_input_if(found == tensors.kinds.end(), where, "there is no tensor \"", name, "\"");
    const auto& [shape, type] = found->second;
    fail_input_if(shape != expected || !at::isFloatingType(type), where, "tensor \"", name, "\" is ", type, " ",
                  at::IntArrayRef(shape), ", expected ", at::IntArrayRef(expected));
    used.insert(name);
  };
  for (const RenamedWeight& weight : model.weights.list) {
    const TheirTensor& form = form_in(weight, tensors);
    check(form.name, form.shape);
    if (!form.plus) continue;
    check(form.plus->up, {form.plus->out, form.plus->rank});
    check(form.plus->down, {form.plus->rank, form.plus->in});
  }
  for (const auto& [name, kind] : tensors.kinds) {
    const bool idle =
        (name == "lm_head.weight" && model.config.tied) || std::ranges::find(model.idle, name) != model.idle.end();
    fail_input_if(!used.contains(name) && !idle && !is_left_out(model, name), where, "tensor ", printable(name),
                  " belongs to no part of this architecture that is supported");
  }
}

Tensor product_of(const LowRank& product, const TheirTensors& tensors) {
  const auto read = [&](const std::string& name) { return tensors.read({.name = name, .shape = {}}).to(at::kFloat); };
  return at::mm(read(product.up), read(product.down));
}

PretrainedModel read_renamed(const RenamedSource& source, const ReadWeights& how) {
  const RenamedModel& model = source.model;
  const TheirTensors tensors = source.tensors();
  check_tensors(model, tensors);
  PretrainedModel read{model.config, {}, left_out_of(model, tensors)};
  int64_t done = 0, total = 0;  // counted in the source's tensors
  for (const RenamedWeight& weight : model.weights.list) {
    const TheirTensor& form = form_in(weight, tensors);
    total += c10::multiply_integers(form.shape) / (form.index ? form.shape.front() : 1);
  }
  for (const RenamedWeight& weight : model.weights.list) {
    if (interrupt_requested()) throw Failure(concat("[import] ", model.source, ": stopped"));
    const TheirTensor& form = form_in(weight, tensors);
    Tensor theirs = tensors.read(form);
    if (form.plus) theirs = theirs.to(at::kFloat) + product_of(*form.plus, tensors);
    const Tensor moved = form.change ? form.change(theirs) : theirs;
    const Tensor tensor = form.value ? form.value->ours(moved) : moved;
    how.put(read, weight.ours, tensor.contiguous());
    if (how.progress) how.progress(done += theirs.numel(), total);
  }
  return read;
}

}  // namespace

std::optional<RenamedModel> read_architecture(JsonReader& config) {
  // Configs of mamba_ssm, the program of Mamba's authors, have no type.
  const std::string type = config.text("model_type", config.has("ssm_cfg") ? kMambaSsm : "none");
  for (const Architecture& architecture : architectures()) {
    if (type != architecture.type) continue;
    return architecture.read(config);
  }
  return std::nullopt;
}

std::string renamed_types() {
  std::string list;
  for (const Architecture& architecture : architectures()) list += concat(list.empty() ? "" : ", ", architecture.type);
  return list;
}

PretrainedReader pretrained_reader(const std::string& path, std::optional<int64_t> context) {
  if (auto renamed = renamed_source(path)) {
    RotaryScaling& scaling = renamed->model.config.rope_scaling;
    fail_input_if(context && scaling.type != RotaryScaling::Type::kLongrope, "[import] ", path,
                  ": the context chooses longrope's factors, which this model does not have");
    if (context) scaling.context = *context;
    return {renamed->model.config.vocabulary, [=](const ReadWeights& how) { return read_renamed(*renamed, how); }};
  }
  PretrainedSource source = open_pretrained(path);
  if (context) source.decoder.want_context(*context);
  return {source.decoder.model.vocabulary, [=](const ReadWeights& how) { return read_pretrained(source, how); }};
}

}  // namespace cortado
