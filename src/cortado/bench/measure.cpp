#include "cortado/bench/measure.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>

#include "cortado/base/error.h"
#include "cortado/base/progress.h"
#include "cortado/base/stopwatch.h"
#include "cortado/bench/kernel.h"
#include "cortado/nn/matmul.h"
#include "cortado/primitives/kernels/tensors.h"

namespace cortado {
namespace {

//  --- What this machine can reach at most; kernels are compared with it. ---

// For torch's current number of threads; each is the best of several tries. All are float32.
struct Ceilings {
  double fma_flops = 0;     // per second, multiply-adds on registers
  double matmul_flops = 0;  // per second, torch's best matrix product
  std::string matmul;       // which product that was: "MKL 2048", "oneDNN 1024"
  double read_bytes = 0;    // per second, reading 256 MiB
  double stream_bytes = 0;  // per second, writing a + 3 b to a third buffer, 64 MiB each: 12 bytes per element
  double exps = 0;          // per second, our own vectorised exp in the L1 cache

  // Takes the larger of each.
  void raise_to(const Ceilings& other) {
    fma_flops = std::max(fma_flops, other.fma_flops);
    if (other.matmul_flops > matmul_flops) matmul = other.matmul;
    matmul_flops = std::max(matmul_flops, other.matmul_flops);
    read_bytes = std::max(read_bytes, other.read_bytes);
    stream_bytes = std::max(stream_bytes, other.stream_bytes);
    exps = std::max(exps, other.exps);
  }
  Json to_json() const {
    return {{"fma_flops", fma_flops},   {"matmul_flops", matmul_flops}, {"matmul", matmul},
            {"read_bytes", read_bytes}, {"stream_bytes", stream_bytes}, {"exps", exps}};
  }
};

constexpr int kTries = 5;
constexpr double kAtLeast = 0.01;  // seconds per try
constexpr double kEnough = 0.25;   // seconds for all tries: beyond this, a second try is the last
constexpr int64_t kStreamFloats = int64_t{16} << 20;

// Returns `amount` per second, the best of several tries. `work(n)` processes n times `amount`.
double best_rate(double amount, const std::function<void(int64_t n)>& work) {
  int64_t n = 1;
  double seconds = seconds_of([&] { work(n); });
  while (seconds < kAtLeast) {
    n *= 2;
    seconds = seconds_of([&] { work(n); });
  }
  double least = seconds, all = seconds;
  for (int i = 1; i < kTries && (i < 2 || all < kEnough); ++i) {
    const double again = seconds_of([&] { work(n); });
    least = std::min(least, again);
    all += again;
  }
  return amount * static_cast<double>(n) / least;
}

void measure_matmul(Ceilings& ceilings) {
  for (const int64_t size : {512, 1024, 2048}) {
    const at::Tensor a = at::randn({size, size}), b = at::randn({size, size});
    const double flops = 2.0 * static_cast<double>(size) * static_cast<double>(size) * static_cast<double>(size);
    const auto offer = [&](const char* name, const std::function<void()>& product) {
      const double rate = best_rate(flops, [&](int64_t n) {
        for (int64_t i = 0; i < n; ++i) product();
      });
      if (rate <= ceilings.matmul_flops) return;
      ceilings.matmul_flops = rate;
      ceilings.matmul = concat(name, " ", size);
    };
    at::Tensor out = at::empty({size, size});
    offer(at::hasMKL() ? "MKL" : "BLAS", [&] { at::mm_out(out, a, b); });
    if (has_onednn()) offer("oneDNN", [&] { onednn_linear(a, b, {}); });
  }
}

// Takes one to three seconds.
Ceilings measure_ceilings() {
  const at::NoGradGuard no_grad;
  const auto parallel = kernels::parallel();
  const auto threads = static_cast<double>(parallel.threads);
  Ceilings result;
  constexpr int64_t kRounds = 10000;
  result.fma_flops = best_rate(threads * kRounds * bench::kFmaFlops * static_cast<double>(bench::lanes()),
                               [&](int64_t n) { bench::fma_loop(parallel, n * kRounds); });
  result.exps = best_rate(threads * bench::kExpBlock, [&](int64_t n) { bench::exp_loop(parallel, n); });
  const int64_t unit = 128 * parallel.threads, floats = kStreamFloats / unit * unit;
  const at::Tensor buffer = at::ones({4 * floats});
  float* data = buffer.mutable_data_ptr<float>();
  result.read_bytes = best_rate(16.0 * static_cast<double>(floats), [&](int64_t n) {
    for (int64_t i = 0; i < n; ++i) bench::read_loop(parallel, data, 4 * floats);
  });
  for (const bool past_caches : {false, true}) {
    const double rate = best_rate(12.0 * static_cast<double>(floats), [&](int64_t n) {
      for (int64_t i = 0; i < n; ++i) {
        bench::triad_loop(parallel, data, data + floats, data + 2 * floats, floats, past_caches);
      }
    });
    result.stream_bytes = std::max(result.stream_bytes, rate);
  }
  measure_matmul(result);
  return result;
}

// --- Operators. ---

constexpr double kLeastSeconds = 2e-2;  // seconds per measurement: shorter calls are repeated
constexpr double kBackward = 3.5;       // flops of forward and backward, relative to forward alone

// One measurement at B = 1. measure_operators says what is counted.
struct OperatorRow {
  const OperatorCase* of = nullptr;
  const char* pass = "forward";
  int64_t tokens = 0;  // per call
  // Tokens before the call, for steps. Only the cost of full attention depends on it.
  int64_t depth = 0;
  int64_t threads = 0;
  double seconds = 0;  // per call, the median of the rounds
  double flops = 0, bytes = 0,
         exps = 0;  // per call; exps is 0 with backward, where each kernel decides what to recompute

  Json to_json(const Ceilings& ceilings) const {
    const double flops_rate = flops / seconds, bytes_rate = bytes / seconds;
    Json json = {{"operator", of->operation},
                 {"case", of->name},
                 {"pass", pass},
                 {"tokens", tokens},
                 {"threads", threads},
                 {"seconds", seconds},
                 {"flops_per_second", flops_rate},
                 {"bytes_per_second", bytes_rate},
                 {"tokens_per_second", static_cast<double>(tokens) / seconds}};
    json["share"] = {{"fma", flops_rate / ceilings.fma_flops},
                     {"matmul", flops_rate / ceilings.matmul_flops},
                     {"stream", bytes_rate / ceilings.stream_bytes},
                     {"exp", exps / seconds / ceilings.exps}};
    if (depth > 0) json["depth"] = depth;
    return json;
  }
};

using CeilingsByThreads = std::vector<std::pair<int64_t, Ceilings>>;

// One computation to measure; several take turns.
struct Contestant {
  OperatorRow row;
  std::function<void()> call;
  int64_t calls = 1;  // per measurement
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

// Forward, forward with backward, and decoding step of one case at one length.
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
    row.pass = "forward+backward";
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
    OperatorRow row{.of = &which_, .pass = "step", .tokens = 1, .depth = sizes_.tokens, .threads = threads};
    const bool all_keys = which_.most_tokens > 0;  // full attention: the work depends on the depth
    const double flops = which_.work(all_keys ? sizes_ : one).flops;
    // The last query sees twice as many keys as the average one.
    row.flops = all_keys ? 2 * flops : flops;
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

// Takes the median of the rounds. The first measurement of each is a warm-up and determines the number of repetitions.
// Returns false if stopped.
bool measure_in_turns(std::vector<Contestant>& all, const OperatorRequest& request) {
  for (int64_t round = -1; round < request.rounds; ++round) {
    for (Contestant& each : all) {
      if (request.stop && request.stop()) return false;
      at::set_num_threads(static_cast<int>(each.row.threads));
      // Warm up after another one's turn: wakes the threads and fills the caches.
      each.call();
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

void measure_all_ceilings(CeilingsByThreads& all) {
  for (auto& [threads, ceilings] : all) {
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

// Returns false if stopped.
bool measure_cases(const OperatorRequest& request, const CeilingsByThreads& ceilings, std::vector<OperatorRow>& rows) {
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
      for (const auto& [threads, _] : ceilings) contest.enter(all, threads, with_step);
      if (!measure_in_turns(all, request)) return false;
      for (const Contestant& each : all) rows.push_back(each.row);
    }
  }
  return true;
}

}  // namespace

Json measure_operators(const OperatorRequest& request) {
  const int before = at::get_num_threads();
  check_all(request);
  CeilingsByThreads ceilings;
  for (const int64_t threads : request.threads) ceilings.emplace_back(threads, Ceilings());
  if (ceilings.empty()) ceilings.emplace_back(before, Ceilings());
  measure_all_ceilings(ceilings);
  std::vector<OperatorRow> rows;
  if (measure_cases(request, ceilings, rows)) measure_all_ceilings(ceilings);
  at::set_num_threads(before);
  Json json = {{"ceilings", Json::array()}, {"rows", Json::array()}};
  for (const auto& [threads, of_machine] : ceilings) {
    json["ceilings"].push_back(of_machine.to_json());
    json["ceilings"].back()["threads"] = threads;
  }
  for (const OperatorRow& row : rows) {
    const auto same = [&](const auto& entry) { return entry.first == row.threads; };
    json["rows"].push_back(row.to_json(std::find_if(ceilings.begin(), ceilings.end(), same)->second));
  }
  return json;
}

}  // namespace cortado
