#include "cortado/analyze/capture.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>

#include <algorithm>

namespace cortado {
namespace {

thread_local std::vector<OperatorCall>* calls = nullptr;

// Inputs can be seen when a call begins, outputs when it ends.
struct Begun : at::ObserverContext {
  OperatorCall call;
};

std::unique_ptr<at::ObserverContext> begin_call(const at::RecordFunction& function) {
  if (!calls || !function.operator_name()) return nullptr;
  const auto schema = c10::Dispatcher::singleton().findSchema(*function.operator_name());
  if (!schema) return nullptr;
  auto begun = std::make_unique<Begun>();
  begun->call.name = function.operator_name()->name;
  for (const auto& argument : schema->schema().arguments()) begun->call.arguments.push_back(argument.name());
  const auto inputs = function.inputs();
  begun->call.inputs.assign(inputs.begin(), inputs.end());
  return begun;
}

void end_call(const at::RecordFunction& function, at::ObserverContext* context) {
  if (!calls || !context) return;
  OperatorCall& call = static_cast<Begun*>(context)->call;
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

}  // namespace cortado
