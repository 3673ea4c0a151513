// cortado sweep: trains many runs described by one file, and shows the results.
#include "cortado/sweep/sweep.h"

#include <signal.h>
#include <sys/prctl.h>

#include <filesystem>
#include <set>
#include <string>

#include "cortado/base/human.h"
#include "cortado/base/machine.h"
#include "cortado/base/progress.h"
#include "cortado/base/signals.h"
#include "cortado/base/stopwatch.h"
#include "cortado/base/words.h"
#include "cortado/cli/common.h"
#include "cortado/models/config.h"
#include "cortado/parallel/ranks.h"
#include "cortado/sweep/claim.h"
#include "cortado/sweep/estimate.h"
#include "cortado/sweep/results.h"
#include "cortado/tasks/registry.h"
#include "cortado/train/options.h"

namespace cortado {
namespace {

struct SweepOptions {
  std::string file, scale, out, only, shard, data;
  std::vector<std::string> settings;
  int64_t jobs = 0;
  bool claimed = false, list = false, dry = false, table = false, json = false, quiet = false, retry = false;
  std::shared_ptr<CommonOptions> common;

  SweepPlan plan() const { return read_sweep(file, scale, settings); }
  std::string folder(const SweepPlan& plan) const {
    return out.empty() ? concat("runs/sweeps/", plan.name, plan.scale.empty() ? "" : "-", plan.scale) : out;
  }
  SweepTraining training(at::Device device) const {
    return {device, data.empty() ? shipped_file("data/tinyshakespeare.txt") : data, interrupt_requested};
  }
};

// Converts "2/8" to 1, 8.
std::pair<int64_t, int64_t> shard_of(const std::string& text) {
  if (text.empty()) return {0, 1};
  int64_t number = 0, count = 0;
  char rest = 0;
  const bool good = std::sscanf(text.c_str(), "%ld/%ld%c", &number, &count, &rest) == 2;
  fail_input_if(!good || number < 1 || number > count, "[--shard] expected I/N with 1 <= I <= N, got \"", text, "\"");
  return {number - 1, count};
}

// Trains one run. If a sweep has started it (--claimed), the sweep has the claim, and the run ends with the sweep even
// if that is killed. Otherwise it takes a claim of its own. A finished run is only printed.
void run_only(const SweepOptions& options, const SweepPlan& plan) {
  const SweepRun& run = plan.run(options.only);
  const SweepPlace place{options.folder(plan)};
  SweepTraining training = options.training(options.common->apply());
  if (options.claimed) ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (!options.claimed) claim_sweep_folder(plan, place.out);
  const auto claim = options.claimed ? nullptr : Claim::take(place.claim(run));
  if (!options.claimed && !claim) throw Failure(concat("[sweep] ", run.id, " is running in another process"));
  catch_interrupts();
  Stopwatch untouched;
  training.stop = [&] {
    if (claim && untouched.seconds() > static_cast<double>(kClaimSeconds) / 6) {
      claim->touch();
      untouched = {};
    }
    return interrupt_requested();
  };
  const bool ended = std::filesystem::exists(place.result(run));
  const std::optional<Json> result = ended ? read_json_file(place.result(run)) : run_one(plan, run, place, training);
  if (!result) exit_if_interrupted();
  if (result) std::cout << result->dump(2) << std::endl;
}

// A missing data set is only an error if the config names its folder: it may exist on the machine that trains.
void check_task(const Json& task) {
  try {
    open_task(task, "task");
  } catch (const NoFolder&) {
    if (task.contains("folder")) throw;
  }
}

// Lists every run and checks its config.
void list_runs(const SweepOptions& options, const SweepPlan& plan) {
  Json rows = Json::array();
  bool good = true;
  std::set<std::string> tasks;  // tasks that have passed the check
  for (const SweepRun& run : plan.runs) {
    Json row = {{"id", run.id}, {"config", run.config}};
    try {
      const ModelConfig model = ModelConfig::from_json(run.config, run.id);
      TrainingOptions::from_json(model.training);
      const Json task = run.config.value("task", Json());
      const std::string text = task.dump();
      if (!task.is_null() && !tasks.contains(text)) check_task(task);
      tasks.insert(text);
    } catch (const InputError& error) {
      row["problem"] = error.what();
      good = false;
    }
    rows.push_back(row);
  }
  const Table table = table_of(rows, {{"run", "/id"}, {"", "/problem"}});
  std::cout << (options.json ? rows.dump(2) + "\n" : table.text()) << std::flush;
  fail_input_if(!good, "[sweep] some configs are invalid");
}

std::string command_of(const SweepRun& run) { return "cortado " + joined(run.words, " "); }

void list_commands(const SweepOptions& options, const SweepPlan& plan) {
  Json rows = Json::array();
  for (const SweepRun& run : plan.runs) rows.push_back({{"id", run.id}, {"command", command_of(run)}});
  if (options.json) std::cout << Json{{"commands", rows}}.dump(2) << std::endl;
  if (options.json) return;
  std::cout << table_of(rows, {{"step", "/id"}, {"command", "/command"}}).text() << std::flush;
}

std::vector<Estimate> estimates(const SweepOptions& options, const SweepPlan& plan) {
  const SweepTraining training = options.training(options.common->apply());
  if (plan.commands) return estimate_commands(plan.runs, training);
  const auto total = int64_t(plan.runs.size());
  ProgressBar bar({.label = "estimate", .total = total, .unit = "runs", .quiet = options.quiet || options.json});
  return estimate_runs(plan.runs, training, [&](int64_t done) { bar.update(done); });
}

// Prints the runs or commands, the tokens that they read, and their time on this machine.
void print_plan(const SweepOptions& options, const SweepPlan& plan) {
  catch_interrupts();
  const std::vector<Estimate> costs = estimates(options, plan);
  exit_if_interrupted();
  Json rows = Json::array();
  int64_t tokens = 0, unknown = 0;
  double seconds = 0;
  for (size_t i = 0; i < costs.size(); ++i) {
    Json row = {{"id", plan.runs[i].id}};
    if (plan.commands) row["command"] = command_of(plan.runs[i]);
    if (costs[i].problem.empty()) row["hours"] = costs[i].seconds / 3600;
    if (costs[i].tokens > 0) row["tokens"] = costs[i].tokens;
    if (!costs[i].problem.empty()) row["problem"] = costs[i].problem;
    rows.push_back(row);
    tokens += costs[i].tokens;
    seconds += costs[i].seconds;
    unknown += !costs[i].problem.empty();
  }
  fail_input_if(!plan.commands && unknown == int64_t(costs.size()), "[", options.file, "] ", costs.front().problem);
  if (options.json) {
    std::cout << Json{{plan.commands ? "commands" : "runs", rows}, {"tokens", tokens}, {"hours", seconds / 3600}}.dump(
                     2)
              << std::endl;
    return;
  }
  const auto count = [](const Json& number) { return with_commas(number.get<int64_t>()); };
  for (Json& row : rows) {
    if (plan.commands && row.contains("problem")) row["hours"] = "not known";
  }
  const auto hours = [](const Json& found) { return found.is_string() ? plain(found) : decimals(3)(found); };
  std::vector<Column> columns = {
      {plan.commands ? "step" : "run", "/id"}, {"tokens", "/tokens", count}, {"hours", "/hours", hours}};
  columns.push_back(plan.commands ? Column{"command", "/command"} : Column{"", "/problem"});
  std::cout << table_of(rows, columns).text() << rows.size() << (plan.commands ? " commands, " : " runs, ");
  if (tokens > 0) std::cout << with_commas(tokens) << " tokens, ";
  std::cout << "about " << human_seconds(seconds) << " on one thread group of this machine (" << this_machine().cpu
            << ")";
  if (unknown > 0) std::cout << ", without the " << unknown << " of unknown duration";
  std::cout << std::endl;
}

// Returns the options that determine the results: ["--scale", "laptop", ...].
std::vector<std::string> words_of(const SweepOptions& options) {
  std::vector<std::string> words;
  const auto add = [&](const char* flag, const std::string& value) {
    if (!value.empty()) words.insert(words.end(), {flag, value});
  };
  add("--scale", options.scale);
  add("--data", options.data);
  for (const std::string& setting : options.settings) add("--set", setting);
  return words;
}

// Returns this command for a sweep's processes, without options that each process sets itself, and with `threads` each.
std::vector<std::string> own_command(const SweepOptions& options, const SweepPlan& plan, int64_t threads) {
  std::vector<std::string> command = words_of(options);
  // With torchrun the program is Python, which names the actual program here.
  const char* named = std::getenv("CORTADO_PROGRAM");
  const std::string program = named ? named : std::filesystem::read_symlink("/proc/self/exe").string();
  command.insert(command.begin(), {program, "sweep", options.file, "--out", options.folder(plan)});
  command.insert(command.end(), {"--device", options.common->device, "--threads", std::to_string(threads)});
  return command;
}

void report(const SweepOptions& options, const SweepPlan& plan, const SweepResult& result) {
  if (options.json) {
    std::cout << Json(result.results).dump(2) << std::endl;
  } else {
    std::cout << sweep_table(plan, sweep_rows(plan, result.results)).text() << result.results.size() << " of "
              << plan.runs.size() << " runs; more in " << options.folder(plan) << std::endl;
  }
}

// Several processes share the runs by claims, as several machines would: each takes the next free run, and process 0
// ends last. The processes that they start are not part of the group.
void share_out(SweepRequest& request) {
  const Ranks& ranks = Ranks::world();
  if (!ranks.several()) return;
  ranks.by_first([&] {
    SweepRequest begin = request;
    begin.jobs = 0;
    run_sweep(begin);
  });
  request.retry = false;
  request.wait = ranks.first();
  request.progress = request.progress && ranks.first();
  ::unsetenv("CORTADO_PROCESS_GROUP");
}

SweepRequest request_of(const SweepOptions& options, const SweepPlan& plan) {
  const auto [shard, shards] = shard_of(options.shard);
  fail_input_if(plan.commands && (shards > 1 || options.jobs > 1 || !options.only.empty()), "[", options.file,
                "] is a sequence of commands: --shard, --jobs and --only are for sweeps of trainings");
  const bool several = Ranks::world().several();
  fail_input_if(several && plan.commands, "[", options.file,
                "] is a sequence of commands, which one process runs: leave torchrun out");
  const int64_t cores = std::max<int64_t>(1, this_machine().threads);
  const int64_t threads = options.common->threads > 0 ? options.common->threads : 1;
  SweepRequest request{.plan = plan, .out = options.folder(plan), .command = own_command(options, plan, threads)};
  request.jobs = options.jobs > 0 ? options.jobs : several ? 1 : std::max<int64_t>(1, cores / threads);
  fail_input_if(request.jobs * threads > cores, "[--jobs] ", request.jobs, " runs of ", threads,
                " threads are more than ", "this process's ", cores, " cores");
  if (plan.commands) request.jobs = 1;
  if (options.table) request.jobs = 0;
  request.said = "cortado sweep " + shell_quoted(options.file);
  for (const std::string& word : words_of(options)) request.said += " " + shell_quoted(word);
  request.shard = shard;
  request.shards = shards;
  request.stop = interrupt_requested;
  request.progress = !options.quiet;
  request.retry = options.retry;
  return request;
}

void run(const SweepOptions& options) {
  const Ranks& ranks = Ranks::world();
  SweepPlan plan;
  SweepRequest request;
  ranks.agree([&] { plan = options.plan(); });
  const bool alone = !options.only.empty() || options.list || options.dry || options.table;
  if (alone) ranks.require_one("sweep --only, --list, --dry-run or --table");
  if (!options.only.empty() && !plan.commands) return run_only(options, plan);
  if (options.list && !plan.commands) return list_runs(options, plan);
  if (options.list) return list_commands(options, plan);
  if (options.dry) return print_plan(options, plan);
  ranks.agree([&] { request = request_of(options, plan); });
  ranks.require_same("sweep", concat(plan.base.dump(), joined(request.command, " ")));
  share_out(request);
  catch_interrupts();
  const SweepResult result = run_sweep(request);
  if (ranks.first()) report(options, plan, result);
  if (interrupt_requested()) {
    if (ranks.first()) std::cerr << "stopped; the same command continues" << std::endl;
    exit_if_interrupted();
  }
  if (result.elsewhere > 0 && ranks.first())
    std::cerr << result.elsewhere << " runs are claimed by other processes" << std::endl;
}

constexpr const char* kSweepFooter =
    "Examples:\n"
    "  cortado sweep experiments/blurry-window/mqar.json --scale smoke\n"
    "  cortado sweep experiments/blurry-window/mqar.json --scale laptop --dry-run       prints the runs and their "
    "hours\n"
    "  cortado sweep FILE --out /shared/mqar --shard 3/8                                 the third of eight machines' "
    "shares\n"
    "After an interruption the same command continues; finished runs are not repeated. docs/sweeps.md describes\n"
    "the file's format.";

}  // namespace

void add_sweep_command(CLI::App& app) {
  CLI::App& command = *app.add_subcommand("sweep", "Train the runs of an experiment file, and print the results");
  const auto options = std::make_shared<SweepOptions>();
  command.add_option("FILE", options->file, "the sweep (JSON)")->required();
  command.add_option("--scale", options->scale, "one of the file's scales: smoke, laptop, paper");
  command.add_option("--out", options->out, "folder of runs and results (default runs/sweeps/NAME)");
  option(command, "--set", options->settings, "change the config of all runs: training.steps=100 (repeatable)",
         kAssignments);
  command.add_option("--data", options->data, "a text, for language models (default Tiny Shakespeare)");
  option(command, "--jobs", options->jobs, "runs at a time (default: as many as fit the cores with --threads each)",
         CLI::PositiveNumber);
  command.add_option("--shard", options->shard, "only every N-th run, from the I-th on")->type_name("I/N");
  command.add_option("--only", options->only, "only the run with this id, in this process")->type_name("ID");
  command.add_flag("--claimed", options->claimed)->group("");  // used by a sweep's own processes
  command.add_flag("--list", options->list, "print the runs and check their configs");
  command.add_flag("--dry-run", options->dry, "print the runs, their tokens and their hours on this machine");
  command.add_flag("--table", options->table, "run nothing: only collect the results so far");
  command.add_flag("--retry", options->retry, "repeat runs that failed");
  command.add_flag("--json", options->json, "print JSON");
  command.add_flag("--quiet", options->quiet, "show no progress bar");
  command.footer(kSweepFooter);
  options->common = add_common_options(command);
  command.callback([options] { run(*options); });
}

}  // namespace cortado
