#include "cortado/parallel/gradients.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <torch/csrc/distributed/c10d/logger.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include "cortado/parallel/group.h"

namespace cortado {
namespace {

constexpr int64_t kFirstBucket = c10d::kDefaultFirstBucketBytes, kBucket = c10d::kDefaultBucketBytesCap;

// Silences c10d's advice not to look for parameters without a gradient: it comes when every parameter has one, but an
// expert sometimes has none.
class Quiet : public c10::WarningHandler {
 public:
  void process(const c10::Warning&) override {}
};

// Buckets are in reverse order because backward produces the last parameters' gradients first.
std::shared_ptr<c10d::Reducer> make_reducer(const std::vector<Tensor>& parameters, const Ranks& ranks) {
  const std::vector<bool> sparse(parameters.size(), false);
  auto [buckets, limits] = c10d::compute_bucket_assignment_by_size(
      parameters, {static_cast<size_t>(kFirstBucket), static_cast<size_t>(kBucket)}, sparse);
  std::reverse(buckets.begin(), buckets.end());
  return std::make_shared<c10d::Reducer>(parameters, buckets, ranks.group().handle, sparse, kBucket,
                                         /*find_unused_parameters=*/true, /*gradient_as_bucket_view=*/false,
                                         std::unordered_map<size_t, std::string>{}, kFirstBucket,
                                         /*skip_all_reduce_unused_params=*/false, /*use_python_reducer=*/false,
                                         std::vector<int64_t>{});
}

}  // namespace

GradientSum::GradientSum(std::vector<Tensor> parameters, const Ranks& ranks)
    : parameters_(std::move(parameters)), ranks_(ranks) {}

GradientSum::~GradientSum() = default;

int64_t GradientSum::bytes() const {
  int64_t bytes = 0;
  for (const Tensor& parameter : parameters_) bytes += static_cast<int64_t>(parameter.nbytes());
  return bytes;
}

void GradientSum::backward(const Tensor& part, bool last) {
  if (!ranks_.grouped()) return part.backward();
  // The Reducer averages over processes; scaling by their number gives sums.
  Tensor scaled = part * static_cast<double>(ranks_.size());
  if (!scaled.requires_grad()) scaled = parameters_.front().sum() * 0;  // this process has no loss, but others have
  if (!last) return scaled.backward();
  if (!reducer_) {
    reducer_ = make_reducer(parameters_, ranks_);
    logger_ = std::make_shared<c10d::Logger>(reducer_);
    reducer_->set_logger(logger_);
  }
  Quiet quiet;
  const c10::WarningUtils::WarningHandlerGuard guard(&quiet);
  ranks_.wait([&] {
    reducer_->prepare_for_forward();
    reducer_->prepare_for_backward({scaled});
    scaled.backward();
  });
  done_ = true;
}

void GradientSum::finish() {
  if (!ranks_.grouped() || std::exchange(done_, false)) return;
  const at::NoGradGuard no_grad;
  std::vector<Tensor> gradients;
  std::vector<int64_t> made;
  for (const Tensor& parameter : parameters_) {
    const Tensor& gradient = parameter.grad();
    gradients.push_back(gradient.defined() ? gradient : at::zeros_like(parameter));
    made.push_back(gradient.defined());
  }
  const Tensor all = at::flatten_dense_tensors(gradients), used = at::tensor(made, at::kLong);
  ranks_.sum(all);
  ranks_.sum(used);
  const std::vector<Tensor> sums = at::unflatten_dense_tensors(all, gradients);
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const bool anywhere = used.const_data_ptr<int64_t>()[i] > 0;
    if (anywhere) parameters_[i].mutable_grad() = sums[i].clone();
  }
}

}  // namespace cortado
