#include "cortado/train/run_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <set>
#include <sstream>

#include "cortado/base/error.h"
#include "cortado/base/files.h"
#include "cortado/generate/defaults.h"
#include "cortado/parallel/ranks.h"

namespace cortado {
namespace {

namespace fs = std::filesystem;

const std::set<std::string> kOurs = {"config.json",      "generation_config.json", "tokenizer",   "trainer.safetensors",
                                     "last.safetensors", "best.safetensors",       "train.json",  ".lock",
                                     "metrics.jsonl",    "linearize.json",         "report.json", "report.svg",
                                     "lora.safetensors", "learned.safetensors"};

// Whether this is a temporary file of a run that died while writing: "last.safetensors.tmp.123" and the like.
bool is_leftover(const std::string& name) {
  for (const std::string& own : kOurs) {
    if (name != own && (name.starts_with(own + ".") || name.starts_with("." + own + "."))) return true;
  }
  return false;
}

// Returns the first entry that no run writes, or "".
std::string foreign_entry(const RunFolder& folder) {
  for (const auto& entry : fs::directory_iterator(folder.path)) {
    const std::string name = entry.path().filename().string();
    if (!kOurs.contains(name) && !is_leftover(name)) return name;
  }
  return "";
}

void remove_run(const RunFolder& folder) {
  for (const auto& entry : fs::directory_iterator(folder.path)) {
    if (entry.path().filename() != ".lock") fs::remove_all(entry.path());
  }
}

void check_use(const RunFolder& folder, FolderUse use) {
  if (use == FolderUse::kResume) {
    fail_input_if(!fs::exists(folder.config()) && !folder.has_checkpoint(), "[--resume] ", folder.path,
                  " holds no run to go on with; leave --resume out to start one");
    return;
  }
  const std::string foreign = foreign_entry(folder);
  fail_input_if(!foreign.empty(), "[--out] ", folder.path, " is in use: it holds \"", foreign,
                "\", which is not a run's; name another folder");
  fail_input_if(use == FolderUse::kFresh && folder.has_checkpoint(), "[--out] ", folder.path,
                " already holds a run: --resume goes on with it, --overwrite deletes it, or name another folder");
}

int open_lock(const RunFolder& folder) {
  const int descriptor = open(folder.lock().c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  fail_input_if(descriptor < 0, "[--out] ", folder.path, " is not writable: ", std::strerror(errno));
  if (flock(descriptor, LOCK_EX | LOCK_NB) != 0) {
    close(descriptor);
    throw InputError(concat("[--out] ", folder.path, " is in use: another process is training there"));
  }
  return descriptor;
}

std::string lines_up_to(const std::string& path, int64_t last_step) {
  std::istringstream lines(read_file(path));
  std::string kept;
  for (std::string line; std::getline(lines, line);) {
    const Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    const bool whole = json.is_object() && json.contains("step") && json["step"].is_number_integer();
    if (whole && json["step"].get<int64_t>() <= last_step) kept += line + "\n";
  }
  return kept;
}

}  // namespace

void describe_run(const RunFolder& folder, const Tokenizer* tokenizer, const Json& config, const std::string& base) {
  if (tokenizer != nullptr) tokenizer->save(folder.tokenizer());
  Json file = config;
  file["model_type"] = kModelType;
  write_file(folder.config(), file.dump(2) + "\n");
  if (!base.empty()) write_generation_config(read_generation_config(base), folder.path);
}

bool goes_on_after_a_loss(const RunFolder& folder) { return Ranks::restarts() > 0 && folder.has_checkpoint(); }

bool RunFolder::has_checkpoint() const { return fs::exists(trainer()) || fs::exists(last()) || fs::exists(best()); }

RunLock::RunLock(const RunFolder& folder, FolderUse use) {
  if (use == FolderUse::kResume) {
    fail_input_if(!fs::is_directory(folder.path), "[--resume] there is no run in ", folder.path);
  } else {
    claim_output_directory(folder.path, /*refuse_used=*/false);
  }
  try {
    check_use(folder, use);
    descriptor_ = open_lock(folder);
    if (use != FolderUse::kResume) remove_run(folder);  // with kFresh: leftovers of a run that died at once
  } catch (const fs::filesystem_error& error) {
    if (descriptor_ >= 0) close(descriptor_);
    throw InputError(concat("[--out] ", folder.path, ": ", error.code().message()));
  }
}

RunLock::~RunLock() {
  if (descriptor_ >= 0) close(descriptor_);
}

MetricsFile::MetricsFile(std::string path, int64_t last_step) : path_(std::move(path)) {
  write_file(path_, std::filesystem::exists(path_) ? lines_up_to(path_, last_step) : "");
  file_.open(path_, std::ios::app);
}

void MetricsFile::write(const Json& line) {
  errno = 0;
  file_ << line.dump() << "\n" << std::flush;
  if (!file_) throw Failure(concat("[", path_, "] can't be written: ", std::strerror(errno)));
}

}  // namespace cortado
