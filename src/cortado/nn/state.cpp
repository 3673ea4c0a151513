#include "cortado/nn/state.h"

#include <algorithm>
#include <map>

#include "cortado/base/error.h"

namespace cortado {
namespace {

constexpr const char* kFormat = "cortado-state";
constexpr const char* kVersion = "1";

const std::string& metadata_entry(const TensorFile& file, const std::string& key) {
  const auto entry = file.metadata.find(key);
  fail_input_if(entry == file.metadata.end(), "[state] ", file.path, " lacks the entry \"", key, "\"");
  return entry->second;
}

int64_t layer_count(const TensorFile& file) {
  const std::string& text = metadata_entry(file, "layers");
  fail_input_if(text.empty() || text.size() > 6 || text.find_first_not_of("0123456789") != std::string::npos,
                "[state] ", file.path, " has no valid number of layers: \"", text, "\"");
  return std::stoll(text);
}

// Returns the state with every tensor replaced by change(tensor).
template <typename Change>
SequenceState transform(const SequenceState& state, const Change& change) {
  SequenceState result(state.mechanism());
  for (const auto& [name, tensor] : state.tensors()) result.add(name, change(tensor));
  return result;
}

}  // namespace

void SequenceState::add(const std::string& name, Tensor tensor) {
  fail_input_if(tensor.dim() < 1, "[state] \"", name, "\" of ", mechanism_,
                " needs the batch's rows as first dimension");
  for (const auto& [known, other] : tensors_) {
    fail_input_if(known == name, "[state] ", mechanism_, " has two tensors named \"", name, "\"");
    fail_input_if(other.size(0) != tensor.size(0), "[state] ", mechanism_, ": \"", name, "\" has ", tensor.size(0),
                  " rows, \"", known, "\" has ", other.size(0));
  }
  tensors_.emplace_back(name, std::move(tensor));
}

Tensor* SequenceState::find(const std::string& name) {
  for (auto& [known, tensor] : tensors_) {
    if (known == name) return &tensor;
  }
  return nullptr;
}

Tensor& SequenceState::at(const std::string& name) {
  Tensor* const found = find(name);
  fail_input_if(!found, "[state] the state of ", mechanism_, " has no tensor \"", name, "\"");
  return *found;
}

SequenceState SequenceState::clone() const {
  return transform(*this, [](const Tensor& t) { return t.clone(); });
}

SequenceState SequenceState::compact() const {
  return transform(*this, [](const Tensor& t) { return t.nbytes() < t.storage().nbytes() / 4 * 3 ? t.clone() : t; });
}

SequenceState SequenceState::detach() const {
  return transform(*this, [](const Tensor& t) { return t.detach(); });
}

SequenceState SequenceState::index(const Tensor& rows) const {
  return transform(*this, [&](const Tensor& t) { return t.index_select(0, rows.to(t.device())); });
}

SequenceState SequenceState::row(int64_t number) const {
  return transform(*this, [&](const Tensor& t) { return t.narrow(0, number, 1); });
}

SequenceState SequenceState::to(const at::TensorOptions& options) const {
  return transform(*this, [&](const Tensor& t) {
    at::TensorOptions wanted = t.options();
    if (options.has_device()) wanted = wanted.device(options.device());
    if (options.has_dtype() && t.is_floating_point()) wanted = wanted.dtype(options.dtype());
    return t.to(wanted);
  });
}

Tensor SpareRoom::append(const std::string& name, const Tensor& x, const Tensor& added, int64_t spare) {
  auto found = std::find_if(buffers_.begin(), buffers_.end(), [&](const auto& entry) { return entry.first == name; });
  if (found == buffers_.end()) found = buffers_.insert(buffers_.end(), {name, Tensor()});
  Tensor& buffer = found->second;
  const int64_t places = x.size(1), total = places + added.size(1);
  int64_t start = 0;
  const bool inside = buffer.defined() && buffer.is_alias_of(x) && buffer.size(0) == x.size(0) &&
                      buffer.strides() == x.strides() && buffer.stride(1) > 0;
  if (inside) start = (x.storage_offset() - buffer.storage_offset()) / buffer.stride(1);
  if (!inside || start + total > buffer.size(1)) {
    std::vector<int64_t> sizes = x.sizes().vec();
    sizes[1] = total + spare;
    buffer = at::empty(sizes, x.options());
    buffer.narrow(1, 0, places).copy_(x);
    start = 0;
  }
  buffer.narrow(1, start + places, added.size(1)).copy_(added);
  return buffer.narrow(1, start, total);
}

SequenceState SequenceState::part(const std::string& name, const std::string& mechanism) {
  SequenceState found(mechanism);
  for (const auto& [full, tensor] : tensors_) {
    if (full.starts_with(name + ".")) found.add(full.substr(name.size() + 1), tensor);
  }
  found.room_ = std::move(rooms_of_parts_[name]);
  return found;
}

void SequenceState::put(const std::string& name, SequenceState part) {
  for (const auto& [tensor_name, tensor] : part.tensors_) at(concat(name, ".", tensor_name)) = tensor;
  rooms_of_parts_[name] = std::move(part.room_);
}

int64_t SequenceState::bytes() const {
  int64_t total = 0;
  for (const auto& [name, tensor] : tensors_) total += tensor.numel() * tensor.element_size();
  return total;
}

TensorFile file_of_states(const std::vector<SequenceState>& states, const std::string& identity,
                          const NamedTensors& extra) {
  TensorFile file;
  file.metadata = {{"format", kFormat}, {"version", kVersion}, {"identity", identity}};
  file.metadata["layers"] = std::to_string(states.size());
  for (size_t i = 0; i < states.size(); ++i) {
    const std::string layer = std::to_string(i);
    file.metadata["mechanism." + layer] = states[i].mechanism();
    for (const auto& [name, tensor] : states[i].tensors()) {
      file.tensors.emplace_back("layers." + layer + "." + name, tensor);
    }
  }
  for (const auto& [name, tensor] : extra) file.tensors.emplace_back("extra." + name, tensor);
  return file;
}

std::vector<SequenceState> states_of_file(const TensorFile& file, const std::string& identity, NamedTensors* extra) {
  const std::string& path = file.path;
  const auto format = file.metadata.find("format");
  fail_input_if(format == file.metadata.end() || format->second != kFormat, "[state] ", path, " is not a state file");
  const std::string& version = metadata_entry(file, "version");
  fail_input_if(version != kVersion, "[state] ", path, " has version ", version, ", this program reads ", kVersion);
  const std::string& owner = metadata_entry(file, "identity");
  fail_input_if(owner != identity, "[state] ", path, " belongs to another model: ", owner, ", this one is ", identity);

  std::vector<SequenceState> states;
  std::map<std::string, int64_t> numbers;  // "layers.12" -> 12
  const int64_t layers = layer_count(file);
  for (int64_t i = 0; i < layers; ++i) {
    numbers["layers." + std::to_string(i)] = i;
    states.emplace_back(metadata_entry(file, "mechanism." + std::to_string(i)));
  }
  for (const auto& [name, tensor] : file.tensors) {
    if (name.starts_with("extra.")) {
      if (extra) extra->emplace_back(name.substr(6), tensor);
      continue;
    }
    const size_t dot = name.find('.', name.find('.') + 1);
    const auto layer = numbers.find(name.substr(0, dot));
    fail_input_if(dot == std::string::npos || layer == numbers.end(), "[state] ", path,
                  " has a tensor that belongs nowhere: \"", name, "\"");
    states[layer->second].add(name.substr(dot + 1), tensor);
  }
  return states;
}

}  // namespace cortado
