#include "cortado/base/error.h"
#include "cortado/models/backbone.h"

namespace cortado {

namespace {

constexpr const char* kPosition = "position";

template <typename Change>
ModelState transform(const ModelState& state, const Tensor& position, const Change& change) {
  ModelState result;
  for (const SequenceState& layer : state.layers) result.layers.push_back(change(layer));
  result.position = position;
  return result;
}

// `read` with the types and the device of `zero`, the mixer's own state.
SequenceState fit(const SequenceState& read, const SequenceState& zero, const StateLayout& layout,
                  const std::string& place) {
  fail_input_if(read.mechanism() != zero.mechanism(), place, " is a state of ", read.mechanism(), ", the model needs ",
                zero.mechanism());
  layout.check(read, place);
  SequenceState result(read.mechanism());
  for (const auto& [name, wanted] : zero.tensors()) result.add(name, read.at(name).to(wanted.options()));
  return result;
}

}  // namespace

ModelState ModelState::clone() const {
  return transform(*this, position.clone(), [](const SequenceState& layer) { return layer.clone(); });
}

ModelState ModelState::index(const Tensor& rows) const {
  return transform(*this, position.index_select(0, rows.to(position.device())),
                   [&](const SequenceState& layer) { return layer.index(rows); });
}

ModelState ModelState::to(const at::TensorOptions& options) const {
  const Tensor moved = options.has_device() ? position.to(options.device()) : position;
  return transform(*this, moved, [&](const SequenceState& layer) { return layer.to(options); });
}

ModelState ModelState::detach() const {
  return transform(*this, position, [](const SequenceState& layer) { return layer.detach(); });
}

int64_t ModelState::bytes() const {
  int64_t total = position.numel() * position.element_size();
  for (const SequenceState& layer : layers) total += layer.bytes();
  return total;
}

void ModelState::save(const std::string& path, const std::string& identity,
                      const std::vector<std::pair<std::string, Tensor>>& extra) const {
  auto all = extra;
  for (const auto& [name, tensor] : extra) {
    fail_input_if(name == kPosition, "[state] \"", kPosition, "\" is the state's own");
  }
  all.emplace_back(kPosition, position);
  save_states(path, layers, identity, all);
}

ModelState ModelState::load(const std::string& path, const std::string& identity,
                            std::vector<std::pair<std::string, Tensor>>* extra) {
  ModelState state;
  std::vector<std::pair<std::string, Tensor>> all;
  state.layers = load_states(path, identity, &all);
  for (const auto& [name, tensor] : all) {
    if (name == kPosition) {
      state.position = tensor;
    } else if (extra) {
      extra->emplace_back(name, tensor);
    }
  }
  fail_input_if(!state.position.defined() || state.position.dim() != 1 || state.position.scalar_type() != at::kLong,
                "[state] ", path, " lacks the position");
  for (const SequenceState& layer : state.layers) {
    fail_input_if(!layer.empty() && layer.rows() != state.rows(), "[state] ", path, " has layers of ", layer.rows(),
                  " and ", state.rows(), " rows");
  }
  return state;
}

ModelState ModelState::load(const std::string& path, const Backbone& model,
                            std::vector<std::pair<std::string, Tensor>>* extra) {
  ModelState state = load(path, model.identity(), extra);
  const ModelState zero = model.zero_state(state.rows());
  fail_input_if(state.layers.size() != zero.layers.size(), "[state] ", path, " has ", state.layers.size(),
                " layers, the model ", zero.layers.size());
  for (size_t i = 0; i < zero.layers.size(); ++i) {
    const auto place = concat("[state] ", path, ": layer ", i);
    state.layers[i] = fit(state.layers[i], zero.layers[i], model.mixers()[i]->state_layout(), place);
  }
  state.position = state.position.to(zero.position.device());
  return state;
}

}  // namespace cortado
