#include "cortado/cli/output_folder.h"

#include <filesystem>
#include <vector>

#include "cortado/base/error.h"
#include "cortado/base/files.h"
#include "cortado/base/signals.h"
#include "cortado/cli/common.h"

namespace cortado {

namespace {

namespace fs = std::filesystem;

void replace_folder(const fs::path& place, const std::function<void(const std::string&)>& write) {
  TemporaryDirectory work(place.parent_path().string(), "." + place.filename().string() + ".cortado-");
  write(work.path());
  if (interrupt_requested()) throw Failure(concat("[", place.string(), "] stopped: nothing is written"));
  fs::permissions(work.path(), fs::status(place).permissions());
  std::error_code error;
  fs::rename(work.path(), place, error);
  if (error) throw Failure(concat("[", place.string(), "] cannot be written: ", error.message()));
  work.release();
}

}  // namespace

void write_output_folder(const std::string& out, const std::function<void(const std::string&)>& write) {
  std::error_code ignored;
  std::vector<fs::path> made;  // by claiming, the innermost first
  for (fs::path at = out; !at.empty() && !fs::exists(at, ignored); at = at.parent_path()) made.push_back(at);
  claim_output_directory(out, /*refuse_used=*/true);
  catch_interrupts();
  try {
    replace_folder(fs::canonical(out), write);
  } catch (const std::exception& failure) {
    for (const fs::path& folder : made) fs::remove(folder, ignored);  // they are empty
    exit_if_interrupted(failure);
    throw;
  }
}

}  // namespace cortado
