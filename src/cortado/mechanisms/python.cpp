// torch.classes.cortado.Mixer: whole mixers for Python, once libcortado.so is loaded with torch.classes.load_library.
#include <torch/custom_class.h>

#include "cortado/mechanisms/registry.h"
#include "cortado/nn/weights.h"

namespace cortado {
namespace {

// A mixer and the state of its sequences. parameters() returns the mixer's own tensors: write to them in place, and
// differentiate with respect to them.
class PythonMixer : public torch::CustomClassHolder {
 public:
  // `settings` is a layer's JSON ({"mixer": "latte", "latents": 32}).
  PythonMixer(const std::string& settings, int64_t dim, int64_t heads, int64_t layer, int64_t layers, bool causal,
              bool rotary, bool float64) {
    const MixerContext context{
        .dim = dim, .heads = heads, .layer = layer, .layers = layers, .causal = causal, .rotary = rotary};
    mixer_ = make_mixer(parse_json(settings, "mixer"), context, "mixer");
    if (float64) mixer_->to(at::kDouble);
  }

  c10::Dict<std::string, Tensor> parameters() const {
    c10::Dict<std::string, Tensor> all;
    for (const auto& weight : named_weights(*mixer_)) all.insert(weight.key(), weight.value());
    return all;
  }

  // Mixes all of x [B,T,D] (or of packed sequences) from the zero state.
  Tensor forward(const Tensor& x, const OptionalTensor& cu_seqlens) {
    return mixer_->forward(x, batch(cu_seqlens), nullptr);
  }
  Tensor reference(const Tensor& x) { return mixer_->reference(x); }

  // `resume` continues where its last call ended; `reset` returns to the zero state, with `rows` sequences.
  void reset(int64_t rows, const Tensor& like) { state_ = mixer_->zero_state(rows, like.options()); }
  Tensor resume(const Tensor& x, const OptionalTensor& cu_seqlens) {
    if (state_.empty()) reset(batch(cu_seqlens).rows(x), x);
    return mixer_->forward(x, batch(cu_seqlens), &state_);
  }
  c10::Dict<std::string, Tensor> state() const {
    c10::Dict<std::string, Tensor> all;
    for (const auto& [name, tensor] : state_.tensors()) all.insert(name, tensor);
    return all;
  }

 private:
  static Batch batch(const OptionalTensor& cu_seqlens) { return {.cu_seqlens = cu_seqlens}; }

  std::shared_ptr<Mixer> mixer_;
  SequenceState state_;
};

}  // namespace

TORCH_LIBRARY_FRAGMENT(cortado, m) {
  m.class_<PythonMixer>("Mixer")
      .def(torch::init<const std::string&, int64_t, int64_t, int64_t, int64_t, bool, bool, bool>(), "",
           {torch::arg("settings"), torch::arg("dim"), torch::arg("heads") = 1, torch::arg("layer") = 0,
            torch::arg("layers") = 1, torch::arg("causal") = true, torch::arg("rotary") = false,
            torch::arg("float64") = false})
      .def("parameters", &PythonMixer::parameters)
      .def("forward", &PythonMixer::forward, "", {torch::arg("x"), torch::arg("cu_seqlens") = c10::IValue()})
      .def("reference", &PythonMixer::reference)
      .def("reset", &PythonMixer::reset)
      .def("resume", &PythonMixer::resume, "", {torch::arg("x"), torch::arg("cu_seqlens") = c10::IValue()})
      .def("state", &PythonMixer::state);
}

}  // namespace cortado
