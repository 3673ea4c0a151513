#include "cortado/bench/measure.h"

#include <ATen/Parallel.h>

#include "cortado/base/error.h"
#include "cortado/base/progress.h"
#include "cortado/base/stopwatch.h"

namespace cortado {
namespace {

constexpr double kLeastSeconds = 2e-2;  // of a measurement: shorter calls are repeated
constexpr double kBackward = 3.5;       // flops with backward, of those of the forward pass

// One thing that is measured, in turns with the others.
struct Contestant {
  OperatorRow row;
  std::function<void()> call;
  int64_t calls = 1;  // of a measurement
  std::vector<double> times = {};

  double measure() const {
    return seconds_of([&] {
             for (int64_t i = 0; i < calls; ++i) call();
           }) /
           static_cast<double>(calls);
  }
};

double bytes_of(const Tensors& tensors) {
  double total = 0;
  for (const Tensor& x : tensors) total += static_cast<double>(x.nbytes());
  return total;
}

// Forward, forward and backward, and step of one case at one length, for one number of threads.
class Contest {
 public:
  Contest(const OperatorCase& which, const OperatorRequest& request, int64_t tokens)
      : which_(which), sizes_{tokens, request.heads, request.size}, dtype_(request.dtype) {
    const Tensors made = which.inputs(sizes_);
    inputs_ = typed_inputs(made, dtype_, false);
    leaves_ = typed_inputs(made, dtype_, true);
    const at::NoGradGuard no_grad;
    Tensors results = which.forward(inputs_);
    o_ = results.front();
    carried_.assign(results.begin() + 1, results.end());
    grad_o_ = at::randn_like(o_);
  }

  void enter(std::vector<Contestant>& all, int64_t threads, bool with_step) {
    const Work work = which_.work(sizes_);
    const auto tokens = static_cast<double>(sizes_.tokens);
    const double in = bytes_of(inputs_), out = static_cast<double>(o_.nbytes());
    OperatorRow row{.of = &which_, .tokens = sizes_.tokens, .threads = threads};
    row.flops = tokens * work.flops;
    row.bytes = in + out;
    row.exps = tokens * work.exps;
    all.push_back({row, [this] {
                     const at::NoGradGuard no_grad;
                     which_.forward(inputs_);
                   }});
    row.pass = Pass::kBoth;
    row.flops *= kBackward;
    row.bytes = 3 * in + 2 * out;
    row.exps = 0;
    all.push_back({row, [this] { operator_gradients(which_.forward(leaves_).front(), grad_o_, leaves_); }});
    if (with_step && which_.steps) all.push_back(step(threads));
  }

 private:
  Contestant step(int64_t threads) {
    OperatorSizes one = sizes_;
    one.tokens = 1;
    const Tensors in = typed_inputs(which_.inputs(one), dtype_, false);
    OperatorRow row{.of = &which_, .pass = Pass::kStep, .tokens = 1, .depth = sizes_.tokens, .threads = threads};
    const bool all_keys = which_.most_tokens > 0;  // attention to every key: its work depends on the depth
    const double flops = which_.work(all_keys ? sizes_ : one).flops;
    row.flops = all_keys ? 2 * flops : flops;  // the last query sees twice as many keys as the average one
    row.bytes = bytes_of(in) + static_cast<double>(o_.nbytes()) / static_cast<double>(sizes_.tokens) +
                (all_keys ? 1 : 2) * bytes_of(carried_);
    return {row, [this, in, carried = carried_]() mutable {
              const at::NoGradGuard no_grad;
              Tensors results = which_.call(in, carried);
              carried.assign(results.begin() + 1, results.end());
            }};
  }

  const OperatorCase& which_;
  OperatorSizes sizes_;
  at::ScalarType dtype_;
  Tensors inputs_, leaves_, carried_;
  Tensor o_, grad_o_;
};

// Medians of the rounds; the first measurement of each is a rehearsal, which says how often to repeat.
bool measure_in_turns(std::vector<Contestant>& all, const OperatorRequest& request) {
  for (int64_t round = -1; round < request.rounds; ++round) {
    for (Contestant& each : all) {
      if (request.stop && request.stop()) return false;
      at::set_num_threads(static_cast<int>(each.row.threads));
      each.call();  // after another one's turn: wakes its threads, fills their caches
      const double seconds = each.measure();
      if (round < 0) {
        each.calls = std::max<int64_t>(1, static_cast<int64_t>(std::ceil(kLeastSeconds / seconds)));
      } else {
        each.times.push_back(seconds);
      }
    }
  }
  for (Contestant& each : all) each.row.seconds = median(each.times);
  return true;
}

void measure_all_ceilings(OperatorResult& result) {
  for (auto& [threads, ceilings] : result.ceilings) {
    at::set_num_threads(static_cast<int>(threads));
    ceilings.raise_to(measure_ceilings());
  }
}

void check_all(const OperatorRequest& request) {
  for (const OperatorCase* which : request.cases) {
    const OperatorCheck check =
        check_operator(*which, {request.tokens.front(), request.heads, request.size}, request.dtype);
    if (check.passed()) continue;
    throw Failure(concat("[bench] ", which->name, " differs from its definition by ", check.error,
                         " (allowed: ", check.tolerance, "): no numbers of what is wrong"));
  }
}

bool takes(const OperatorCase& which, int64_t tokens) { return which.most_tokens == 0 || tokens <= which.most_tokens; }

bool measure_cases(const OperatorRequest& request, OperatorResult& result) {
  const auto total = static_cast<int64_t>(request.cases.size() * request.tokens.size());
  ProgressBar bar({.label = "bench", .total = total, .units_per_count = 0, .quiet = !request.progress});
  int64_t done = 0;
  for (const OperatorCase* which : request.cases) {
    for (const int64_t tokens : request.tokens) {
      bar.update(done++, concat(which->name, " T ", tokens));
      if (!takes(*which, tokens)) continue;
      Contest contest(*which, request, tokens);
      std::vector<Contestant> all;
      const bool with_step = tokens == request.tokens.front() || which->most_tokens > 0;
      for (const auto& [threads, ceilings] : result.ceilings) contest.enter(all, threads, with_step);
      if (!measure_in_turns(all, request)) return false;
      for (const Contestant& each : all) result.rows.push_back(each.row);
    }
  }
  return true;
}

}  // namespace

const char* pass_name(Pass pass) {
  return pass == Pass::kForward ? "forward" : pass == Pass::kBoth ? "forward+backward" : "step";
}

OperatorResult measure_operators(const OperatorRequest& request) {
  const int before = at::get_num_threads();
  check_all(request);
  OperatorResult result;
  for (const int64_t threads : request.threads) result.ceilings.emplace_back(threads, Ceilings());
  if (result.ceilings.empty()) result.ceilings.emplace_back(before, Ceilings());
  measure_all_ceilings(result);
  result.done = measure_cases(request, result);
  if (result.done) measure_all_ceilings(result);
  at::set_num_threads(before);
  return result;
}

const Ceilings& ceilings_of(const OperatorResult& result, int64_t threads) {
  for (const auto& [count, ceilings] : result.ceilings) {
    if (count == threads) return ceilings;
  }
  throw InputError(concat("[bench] nothing was measured with ", threads, " threads"));
}

Json operator_json(const OperatorResult& result) {
  Json json;
  for (const auto& [threads, ceilings] : result.ceilings) {
    json["ceilings"].push_back(ceilings.to_json());
    json["ceilings"].back()["threads"] = threads;
  }
  json["rows"] = Json::array();
  for (const OperatorRow& row : result.rows) {
    const Ceilings& ceilings = ceilings_of(result, row.threads);
    const double flops = row.flops / row.seconds, bytes = row.bytes / row.seconds, exps = row.exps / row.seconds;
    Json entry = {
        {"operator", row.of->operation}, {"case", row.of->name},      {"pass", pass_name(row.pass)},
        {"tokens", row.tokens},          {"threads", row.threads},    {"seconds", row.seconds},
        {"flops_per_second", flops},     {"bytes_per_second", bytes}, {"tokens_per_second", row.tokens_per_second()}};
    entry["share"] = {{"fma", flops / ceilings.fma_flops},
                      {"matmul", flops / ceilings.matmul_flops},
                      {"stream", bytes / ceilings.stream_bytes},
                      {"exp", exps / ceilings.exps}};
    if (row.pass == Pass::kStep) entry["depth"] = row.depth;
    json["rows"].push_back(entry);
  }
  return json;
}

}  // namespace cortado
