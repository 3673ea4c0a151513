// Output folders that are there whole or not at all.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "cortado/base/error.h"
#include "cortado/base/files.h"

namespace cortado {

// `write` fills a folder beside `out`, which then takes its place. In use or not writable: InputError, before anything
// is done.
inline void write_output_folder(const std::string& out, const std::function<void(const std::string&)>& write) {
  namespace fs = std::filesystem;
  claim_output_directory(out, /*refuse_used=*/true);
  const fs::path whole = fs::absolute(out).lexically_normal();
  const fs::path place = whole.has_filename() ? whole : whole.parent_path();
  TemporaryDirectory work(place.parent_path().string(), "." + place.filename().string() + ".");
  write(work.path());
  fs::permissions(work.path(), fs::status(place).permissions());
  std::error_code error;
  fs::rename(work.path(), place, error);
  if (error) throw Failure(concat("[", out, "] cannot be written: ", error.message()));
  work.release();
}

}  // namespace cortado
