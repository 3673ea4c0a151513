#include "cortado/analyze/capture.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>

#include <algorithm>

#include "cortado/analyze/analyze.h"
#include "cortado/base/error.h"

namespace cortado {
namespace {

thread_local std::vector<OperatorCall>* calls = nullptr;

// The inputs are only available at the beginning of a call, the outputs only at its end.
struct StartedCall : at::ObserverContext {
  OperatorCall call;
};

std::unique_ptr<at::ObserverContext> begin_call(const at::RecordFunction& function) {
  if (!calls || !function.operator_name()) return nullptr;
  const auto schema = c10::Dispatcher::singleton().findSchema(*function.operator_name());
  if (!schema) return nullptr;
  auto begun = std::make_unique<StartedCall>();
  begun->call.name = function.operator_name()->name;
  for (const auto& argument : schema->schema().arguments()) begun->call.arguments.push_back(argument.name());
  const auto inputs = function.inputs();
  begun->call.inputs.assign(inputs.begin(), inputs.end());
  return begun;
}

void end_call(const at::RecordFunction& function, at::ObserverContext* context) {
  if (!calls || !context) return;
  OperatorCall& call = static_cast<StartedCall*>(context)->call;
  call.outputs = function.outputs();
  calls->push_back(std::move(call));
}

bool is_same(const c10::IValue& value, const at::Tensor& tensor) {
  return value.isTensor() && value.toTensor().is_same(tensor);
}

}  // namespace

bool OperatorCall::has(const std::string& argument) const {
  return std::find(arguments.begin(), arguments.end(), argument) != arguments.end();
}

at::Tensor OperatorCall::tensor(const std::string& argument) const {
  const auto at = size_t(std::find(arguments.begin(), arguments.end(), argument) - arguments.begin());
  return at < inputs.size() && inputs[at].isTensor() ? inputs[at].toTensor() : at::Tensor();
}

bool OperatorCall::takes(const at::Tensor& tensor) const {
  return std::any_of(inputs.begin(), inputs.end(), [&](const auto& input) { return is_same(input, tensor); });
}

std::vector<OperatorCall> captured(const std::function<void()>& compute) {
  // Without derivatives some layers compute several operators in one pass, which could not be told apart.
  const at::AutoGradMode grad(true);
  std::vector<OperatorCall> found;
  struct Recording {
    at::CallbackHandle handle;
    std::vector<OperatorCall>* before;
    explicit Recording(std::vector<OperatorCall>* into)
        : handle(at::addThreadLocalCallback(at::RecordFunctionCallback(begin_call, end_call)
                                                .needsInputs(true)
                                                .needsOutputs(true)
                                                .scopes({at::RecordScope::FUNCTION}))),
          before(calls) {
      calls = into;
    }
    ~Recording() {
      calls = before;
      at::removeCallback(handle);
    }
  };
  const Recording recording(&found);
  compute();
  return found;
}

std::vector<LayerReading> read_layers(const Reading& reading) {
  const auto& config = reading.model.config();
  const auto count = static_cast<int64_t>(reading.model.mixers().size());
  for (const int64_t layer : reading.layers) {
    fail_input_if(layer < 0 || layer >= count, "[--layers] the model's layers are 0 to ", count - 1, ", there is no ",
                  layer);
  }
  std::vector<LayerReading> found;
  const int64_t last =
      reading.layers.empty() ? count - 1 : *std::max_element(reading.layers.begin(), reading.layers.end());
  const at::NoGradGuard no_grad;
  at::Tensor first_values;
  reading.model.walk(reading.tokens, [&](int64_t layer, const at::Tensor& x) {
    Mixer& mixer = *reading.model.mixers()[size_t(layer)];
    const auto& wanted = reading.layers;
    if (wanted.empty() || std::find(wanted.begin(), wanted.end(), layer) != wanted.end()) {
      const Json& settings = config.layers[size_t(layer)];
      found.push_back({layer, mixer, x.detach(), settings.value("heads", config.heads)});
    }
    return layer < last ? mixer.forward(x, Batch{.cu_seqlens = {}, .first_values = &first_values}, nullptr)
                        : at::Tensor();
  });
  return found;
}

std::vector<std::vector<double>> rows_of(const at::Tensor& matrix) {
  const at::Tensor given = matrix.to(at::kCPU, at::kDouble).contiguous();
  std::vector<std::vector<double>> rows;
  for (int64_t i = 0; i < given.size(0); ++i) {
    const double* row = given.const_data_ptr<double>() + i * given.size(1);
    rows.emplace_back(row, row + given.size(1));
  }
  return rows;
}

}  // namespace cortado
