// torch.classes.cortado.LanguageModel and Gguf: whole models, and the tensors of GGUF files, for Python. Available once
// libcortado.so is loaded with torch.classes.load_library.
#include <c10/core/InferenceMode.h>
#include <torch/custom_class.h>

#include "cortado/formats/gguf/file.h"
#include "cortado/models/checkpoint.h"
#include "cortado/models/language_model.h"
#include "cortado/models/memory.h"
#include "cortado/nn/dtype.h"
#include "cortado/nn/initialization.h"
#include "cortado/nn/weights.h"

namespace cortado {
namespace {

// parameters() returns the model's own tensors: optimise them from Python, or write to them in place.
class PythonLanguageModel : public torch::CustomClassHolder {
 public:
  // `model` is a run's folder, or the JSON text of a config with a vocabulary, which gives random weights from torch's
  // generator. `dtype` may be "int8" or "int4": weights in that format (for inference) with float32 activations.
  // `memory` is "" or the JSON text of a Memory.
  PythonLanguageModel(const std::string& model, const std::string& dtype, const std::string& memory) {
    OpenOptions options;
    if (!memory.empty()) options.memory = Memory::from_json(parse_json(memory, "memory"), "memory");
    if (dtype == "int8" || dtype == "int4") {
      options.weights = weight_format_of(dtype);
    } else {
      options.dtype = dtype_of(dtype);
    }
    if (!model.starts_with('{')) {
      const KeptGenerator kept;
      model_ = open_model(model, options);
      return;
    }
    ModelConfig config = ModelConfig::from_json(parse_json(model, "config"), "config");
    if (options.memory) config = with_memory(std::move(config), *options.memory);
    model_ = std::make_shared<LanguageModel>(config);
    model_->to(options.dtype);
    model_->set_weight_format(options.weights);
  }

  c10::Dict<std::string, Tensor> parameters() const {
    c10::Dict<std::string, Tensor> all;
    for (const auto& weight : named_weights(*model_)) all.insert(weight.key(), weight.value());
    return all;
  }

  std::string config() const { return model_->config().to_json().dump(); }

  // Maps tokens int64 [B, T] to logits [B, T, V].
  Tensor forward(const Tensor& tokens) { return model_->forward(tokens); }

  // The type of cached keys and values, for states that are made from now on.
  void set_cache_type(const std::string& type) { model_->set_cache_type(dtype_of(type)); }

  // Mean cross-entropy in nats per token. Targets have the tokens' shape; -1 is not counted. Dropout acts if
  // `training`.
  Tensor loss(const Tensor& tokens, const Tensor& targets, bool training) {
    return model_->loss(tokens, targets, {.cu_seqlens = {}, .training = training});
  }

  // As forward(), `chunk` tokens at a time through the state.
  Tensor resume(const Tensor& tokens, int64_t chunk) {
    ModelState state = model_->zero_state(tokens.size(0));
    std::vector<Tensor> parts;
    for (const Tensor& part : tokens.split(chunk, 1)) parts.push_back(model_->forward(part, {}, &state));
    return at::cat(parts, 1);
  }

  // Continues reading, or starts from the first token if `anew`: tokens [B, T] -> logits of the last one [B, V].
  Tensor read(const Tensor& tokens, bool anew) {
    const c10::InferenceMode inference;
    if (anew || state_.layers.empty()) state_ = model_->zero_state(tokens.size(0));
    const Tensor hidden = model_->hidden(tokens, {}, &state_);
    return model_->logits(hidden.slice(1, hidden.size(1) - 1)).squeeze(1);
  }

 private:
  std::shared_ptr<LanguageModel> model_;
  ModelState state_;  // the state of read()
};

class PythonGguf : public torch::CustomClassHolder {
 public:
  explicit PythonGguf(const std::string& path) : file_(path) {}

  Tensor tensor(const std::string& name) const {
    const GgufTensor* found = file_.find(name);
    file_.fail_if(!found, "has no tensor \"", name, "\"");
    return GgufFile::read(*found);
  }

 private:
  GgufFile file_;
};

}  // namespace

TORCH_LIBRARY_FRAGMENT(cortado, m) {
  m.class_<PythonLanguageModel>("LanguageModel")
      .def(torch::init<const std::string&, const std::string&, const std::string&>(), "",
           {torch::arg("model"), torch::arg("dtype") = "float32", torch::arg("memory") = ""})
      .def("config", &PythonLanguageModel::config)
      .def("set_cache_type", &PythonLanguageModel::set_cache_type)
      .def("parameters", &PythonLanguageModel::parameters)
      .def("forward", &PythonLanguageModel::forward)
      .def("loss", &PythonLanguageModel::loss, "",
           {torch::arg("tokens"), torch::arg("targets"), torch::arg("training") = false})
      .def("resume", &PythonLanguageModel::resume, "", {torch::arg("tokens"), torch::arg("chunk") = 1})
      .def("read", &PythonLanguageModel::read, "", {torch::arg("tokens"), torch::arg("anew") = false});
  m.class_<PythonGguf>("Gguf")
      .def(torch::init<const std::string&>(), "", {torch::arg("path")})
      .def("tensor", &PythonGguf::tensor);
}

}  // namespace cortado
