#include "cortado/cli/output_folder.h"

#include <CLI/CLI.hpp>
#include <filesystem>
#include <iostream>

#include "cortado/base/error.h"
#include "cortado/base/files.h"
#include "cortado/base/signals.h"

namespace cortado {

namespace {

namespace fs = std::filesystem;

void replace_folder(const fs::path& place, const std::function<void(const std::string&)>& write) {
  TemporaryDirectory work(place.parent_path().string(), "." + place.filename().string() + ".");
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
  const fs::path whole = fs::absolute(out).lexically_normal();
  const fs::path place = whole.has_filename() ? whole : whole.parent_path();
  std::error_code ignored;
  const bool was_there = fs::exists(place, ignored);
  claim_output_directory(out, /*refuse_used=*/true);
  catch_interrupts();
  try {
    replace_folder(place, write);
  } catch (const std::exception& failure) {
    if (!was_there) fs::remove(place, ignored);  // it is empty
    if (!interrupt_requested()) throw;
    std::cerr << "cortado: " << failure.what() << std::endl;
    throw CLI::RuntimeError(interrupt_exit_code());
  }
}

}  // namespace cortado
