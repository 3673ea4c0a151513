#include "cortado/sweep/sweep.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <list>
#include <thread>

#include "cortado/base/error.h"
#include "cortado/base/files.h"
#include "cortado/base/human.h"
#include "cortado/base/progress.h"
#include "cortado/base/words.h"
#include "cortado/sweep/claim.h"
#include "cortado/sweep/results.h"

namespace cortado {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr auto kLookAgain = std::chrono::milliseconds(100);
constexpr auto kTouchAgain = std::chrono::seconds(kClaimSeconds / 6);

// A run in a process of its own.
struct Worker {
  const SweepRun* run;
  std::unique_ptr<Claim> claim;
  pid_t process;
  Clock::time_point begun;
};

// Returns the command's words with the folders' names filled in.
std::vector<std::string> words_of_command(const SweepRun& run, const SweepPlace& place) {
  std::vector<std::string> words;
  for (std::string word : run.words) {
    for (size_t at = 0; (at = word.find('{', at)) != std::string::npos;) {
      const size_t end = word.find('}', at);
      const std::string name = word.substr(at + 1, end - at - 1);
      const std::string folder = place.out + "/runs/" + (name == "out" ? run.id : name);
      word.replace(at, end + 1 - at, folder);
      at += folder.size();
    }
    words.push_back(word);
  }
  return words;
}

pid_t spawn(std::vector<std::string> command, const std::string& log) {
  std::vector<char*> words;
  for (std::string& word : command) words.push_back(word.data());
  words.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666);
  ::posix_spawn_file_actions_adddup2(&actions, STDOUT_FILENO, STDERR_FILENO);
  pid_t process = -1;
  const int error = ::posix_spawn(&process, words[0], &actions, nullptr, words.data(), ::environ);
  ::posix_spawn_file_actions_destroy(&actions);
  if (error != 0) throw Failure(concat("[sweep] ", words[0], " can't be started: ", std::strerror(error)));
  return process;
}

std::string last_line(const std::string& path) {
  std::ifstream file(path);
  std::string last;
  for (std::string line; std::getline(file, line);) {
    if (!line.empty()) last = line;
  }
  return last;
}

class Sweep {
 public:
  explicit Sweep(const SweepRequest& request) : request_(request), place_{request.out} {
    for (size_t i = 0; i < request.plan.runs.size(); ++i) {
      if (int64_t(i) % request.shards == request.shard) open_.push_back(&request.plan.runs[i]);
    }
  }

  // Works until this process can do nothing more. Returns the number of runs that other processes have claimed.
  int64_t work() {
    ProgressBar bar({.label = request_.plan.name,
                     .total = int64_t(request_.plan.runs.size()),
                     .unit = "runs",
                     .quiet = !request_.progress});
    auto touched = Clock::now();
    while (true) {
      const bool stopping = request_.stop && request_.stop();
      if (stopping) interrupt();
      while (!stopping && int64_t(workers_.size()) < request_.jobs && begin_next()) {
      }
      if (workers_.empty() && (stopping || !looks_again())) break;
      collect();
      if (Clock::now() - touched > kTouchAgain) {
        for (const Worker& worker : workers_) worker.claim->touch();
        touched = Clock::now();
      }
      bar.update(finished(), concat(workers_.size(), " at work", said_));
      std::this_thread::sleep_for(kLookAgain);
    }
    return int64_t(elsewhere_.size());
  }

 private:
  // Returns false if there is no run left to begin.
  bool begin_next() {
    while (!open_.empty()) {
      const SweepRun& run = *open_.front();
      open_.pop_front();
      if (fs::exists(place_.result(run))) continue;
      auto claim = Claim::take(place_.claim(run));
      if (!claim) {
        elsewhere_.push_back(&run);
        continue;
      }
      if (fs::exists(place_.result(run))) continue;  // its former owner has just finished
      workers_.push_back({&run, std::move(claim), spawn(command_of(run), place_.log(run)), Clock::now()});
      return true;
    }
    return false;
  }

  // Whether to try the runs of other processes again: they may have finished or been abandoned by now.
  bool looks_again() {
    if (!request_.wait || elsewhere_.empty()) return false;
    open_.swap(elsewhere_);
    return true;
  }

  std::vector<std::string> command_of(const SweepRun& run) const {
    std::vector<std::string> command = request_.command;
    if (!request_.plan.commands) {
      command.insert(command.end(), {"--claimed", "--only", run.id});
      return command;
    }
    command.resize(1);  // keeps the program's name only
    const auto words = words_of_command(run, place_);
    command.insert(command.end(), words.begin(), words.end());
    // Resumes an interrupted command if it has an option for that.
    const bool resumes = words[0] == "train" || words[0] == "linearize";
    if (resumes && fs::exists(place_.folder(run))) command.emplace_back("--resume");
    return command;
  }

  void interrupt() {
    if (interrupted_) return;
    interrupted_ = true;
    for (const Worker& worker : workers_) ::kill(worker.process, SIGTERM);
  }

  // Removes the workers that have ended.
  void collect() {
    for (auto worker = workers_.begin(); worker != workers_.end();) {
      int status = 0;
      if (::waitpid(worker->process, &status, WNOHANG) == 0) {
        ++worker;
        continue;
      }
      if (request_.plan.commands && WIFEXITED(status) && WEXITSTATUS(status) == 0) write_command_down(*worker);
      const bool ended = fs::exists(place_.result(*worker->run));
      if (!ended && !interrupted_) write_down(*worker->run, status);
      if (ended) said_ = "; last: " + worker->run->id;
      worker = workers_.erase(worker);
    }
  }

  // Records a process that ended without a result: it was killed or could not start.
  void write_down(const SweepRun& run, int status) const {
    const std::string how = WIFSIGNALED(status) ? concat("killed by signal ", WTERMSIG(status))
                                                : concat("ended with ", WEXITSTATUS(status));
    const std::string said = last_line(place_.log(run));
    const Json result = {{"id", run.id},
                         {"settings", run.settings},
                         {"seed", run.seed},
                         {"status", "failed"},
                         {"message", how + (said.empty() ? "" : ": " + said)}};
    write_file(place_.result(run), result.dump(2) + "\n");
  }

  void write_command_down(const Worker& worker) const {
    const std::chrono::duration<double> spent = Clock::now() - worker.begun;
    Json result = {
        {"id", worker.run->id}, {"settings", worker.run->settings}, {"seed", 0},
        {"status", "done"},     {"seconds", spent.count()},         {"said", read_file(place_.log(*worker.run))}};
    result.update(circumstances(at::kCPU));
    write_file(place_.result(*worker.run), result.dump(2) + "\n");
  }

  int64_t finished() const {
    int64_t count = 0;
    for (const SweepRun& run : request_.plan.runs) count += fs::exists(place_.result(run));
    return count;
  }

  const SweepRequest& request_;
  SweepPlace place_;
  std::list<const SweepRun*> open_, elsewhere_;  // elsewhere_: claimed by other processes
  std::list<Worker> workers_;
  bool interrupted_ = false;
  std::string said_;
};

// Restores missing result files from results.jsonl, so that a sweep without kept runs need not repeat them. Returns the
// lines of runs that are no longer in the sweep; they are kept. Throws InputError if all lines are of this kind,
// because the file then belongs to another sweep.
std::string restore_results(const SweepRequest& request) {
  const std::string path = request.out + "/results.jsonl";
  std::ifstream file(path);
  std::string others;
  int64_t own = 0;
  for (std::string line; std::getline(file, line);) {
    const Json result = Json::parse(line, nullptr, false);
    if (!result.is_object()) continue;
    const std::string id = result.value("id", "");
    const auto& runs = request.plan.runs;
    const auto run = std::find_if(runs.begin(), runs.end(), [&](const SweepRun& one) { return one.id == id; });
    own += run != runs.end();
    if (run == runs.end()) {
      others += line + "\n";
    } else if (const std::string place = SweepPlace{request.out}.result(*run); !fs::exists(place)) {
      write_file(place, result.dump(2) + "\n");
    }
  }
  fail_input_if(own == 0 && !others.empty(), "[", path, "] has results of another sweep; choose another folder");
  return others;
}

// Returns the results in the folder so far.
std::vector<Json> sweep_results(const SweepPlan& plan, const std::string& out) {
  std::vector<Json> results;
  for (const SweepRun& run : plan.runs) {
    const std::string path = SweepPlace{out}.result(run);
    if (!fs::exists(path)) continue;
    results.push_back(read_json_file(path));
    fail_input_if(!results.back().is_object() || results.back().value("id", "") != run.id, "[", path,
                  "] is not the result of this run");
  }
  return results;
}

// Removes failed runs so that they are repeated.
void forget_failed(const SweepRequest& request) {
  const SweepPlace place{request.out};
  for (const Json& result : sweep_results(request.plan, request.out)) {
    if (result.value("status", "") == "done") continue;
    const SweepRun& run = request.plan.run(result["id"].get<std::string>());
    fs::remove_all(place.folder(run));
    fs::remove(place.result(run));
  }
}

// Returns the output of every command under its name.
std::string said_by(const SweepRequest& request, const std::vector<Json>& results) {
  std::string text;
  for (const Json& result : results) {
    const SweepRun& run = request.plan.run(result["id"].get<std::string>());
    text += concat("\n## ", run.id, "\n\n```\n$ cortado ", joined(words_of_command(run, {request.out}), " "), "\n",
                   result.value("said", ""), "```\n");
  }
  return text;
}

void write_results(const SweepRequest& request, const std::vector<Json>& results, const std::string& others) {
  const SweepPlan& plan = request.plan;
  const auto write = [&](const std::string& name, const std::string& text) {
    write_file(request.out + "/" + name, text);
  };
  std::string lines;
  for (const Json& result : results) lines += result.dump() + "\n";
  const Json rows = sweep_rows(plan, results);
  write("results.jsonl", lines + others);
  write("runs.csv", sweep_csv(plan, results));
  write("table.json", Json{{"sweep", plan.name},
                           {"about", plan.about},
                           {"paper", plan.paper},
                           {"scale", plan.scale},
                           {"metric", plan.metric},
                           {"rows", rows},
                           {"published", plan.published}}
                              .dump(2) +
                          "\n");
  write("table.md", concat("# ", plan.about, "\n\n", plan.paper, "\n\n", sweep_table(plan, rows).markdown(),
                           plan.commands ? said_by(request, results)
                                         : "\nEvery run:\n\n" + sweep_runs_table(plan, results).markdown()));
  for (const auto& [name, svg] : sweep_pictures(plan, rows)) write(name, svg);
  const std::string curves = sweep_curves(plan, results);
  if (!curves.empty()) write("curves.svg", curves);
}

}  // namespace

void claim_sweep_folder(const SweepPlan& plan, const std::string& out, const std::string& said) {
  Json about = {{"scale", plan.scale}, {"metric", plan.metric}, {"base", plan.base}};
  const std::string path = out + "/sweep.json";
  claim_output_directory(out, /*refuse_used=*/false);
  // Another process may be creating the same sweep's folder at this moment.
  for (const auto& entry : fs::directory_iterator(out)) {
    const std::string name = entry.path().filename().string();
    fail_input_if(!fs::exists(path) && name != "runs" && !name.starts_with("sweep.json"), "[--out] ", out,
                  " holds something else: ", name, "; choose another folder");
  }
  if (fs::exists(path)) {
    const Json there = read_json_file(path);
    for (const auto& [key, value] : about.items()) {
      fail_input_if(!there.is_object() || there.value(key, Json()) != value, "[--out] ", out,
                    " holds another sweep: its \"", key, "\" differs; choose another folder");
    }
  }
  fs::create_directories(out + "/runs");
  if (!said.empty()) about["command"] = said;
  write_file(path, about.dump(2) + "\n");
}

SweepResult run_sweep(const SweepRequest& request) {
  claim_sweep_folder(request.plan, request.out, request.said);
  const std::string others = restore_results(request);
  if (request.retry) forget_failed(request);
  SweepResult result;
  result.elsewhere = Sweep(request).work();
  result.results = sweep_results(request.plan, request.out);
  result.done = result.results.size() == request.plan.runs.size();
  write_results(request, result.results, others);
  return result;
}

}  // namespace cortado
