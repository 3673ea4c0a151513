// torch.classes.cortado.LanguageModel: whole models for Python, once libcortado.so is loaded with
// torch.classes.load_library.
#include <torch/custom_class.h>

#include "cortado/models/language_model.h"
#include "cortado/nn/weights.h"

namespace cortado {
namespace {

// The tensors of parameters() are the model's own: optimise them from Python, or copy into them in place.
class PythonLanguageModel : public torch::CustomClassHolder {
 public:
  // config: the JSON text of a config with a vocabulary. Random weights, from torch's generator.
  explicit PythonLanguageModel(const std::string& config)
      : model_(std::make_shared<LanguageModel>(ModelConfig::from_json(parse_json(config, "config"), "config"))) {}

  c10::Dict<std::string, Tensor> parameters() const {
    c10::Dict<std::string, Tensor> all;
    for (const auto& weight : named_weights(*model_)) all.insert(weight.key(), weight.value());
    return all;
  }

  // tokens int64 [B,T] -> logits [B,T,vocabulary], whole sequences from zero.
  Tensor forward(const Tensor& tokens) { return model_->forward(tokens); }
  // Mean cross-entropy, nats a token; targets as tokens, -1: not counted. With dropout if `training`.
  Tensor loss(const Tensor& tokens, const Tensor& targets, bool training) {
    Batch batch;
    batch.training = training;
    return model_->loss(tokens, targets, batch);
  }

 private:
  std::shared_ptr<LanguageModel> model_;
};

}  // namespace

TORCH_LIBRARY_FRAGMENT(cortado, m) {
  m.class_<PythonLanguageModel>("LanguageModel")
      .def(torch::init<const std::string&>(), "", {torch::arg("config")})
      .def("parameters", &PythonLanguageModel::parameters)
      .def("forward", &PythonLanguageModel::forward)
      .def("loss", &PythonLanguageModel::loss, "",
           {torch::arg("tokens"), torch::arg("targets"), torch::arg("training") = false});
}

}  // namespace cortado
