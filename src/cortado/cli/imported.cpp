#include "cortado/cli/imported.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "cortado/base/files.h"
#include "cortado/base/hash.h"
#include "cortado/base/human.h"
#include "cortado/base/progress.h"
#include "cortado/base/stopwatch.h"
#include "cortado/cli/common.h"
#include "cortado/formats/gguf/file.h"
#include "cortado/generate/defaults.h"
#include "cortado/models/config.h"
#include "cortado/models/narrow_weights.h"
#include "cortado/models/pretrained/folder.h"
#include "cortado/models/pretrained/pretrained.h"
#include "cortado/models/pretrained/rwkv_published.h"
#include "cortado/tokenizers/chat.h"
#include "cortado/tokenizers/import.h"

namespace cortado {
namespace {

namespace fs = std::filesystem;

constexpr const char* kStamp = "/source.json";

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

std::string cache_place() {
  if (const std::string wanted = environment("CORTADO_CACHE"); !wanted.empty()) return wanted;
  const std::string cache = environment("XDG_CACHE_HOME"), home = environment("HOME");
  fail_input_if(cache.empty() && home.empty(),
                "[import] there is no HOME to keep the imported model in: name a folder with CORTADO_CACHE, or use "
                "`cortado import`");
  return (cache.empty() ? home + "/.cache" : cache) + "/cortado/models";
}

// Returns a name for the model: a file's name without its ending, a folder's name, or the model's name in Hugging
// Face's cache (models--ORGANISATION--NAME/snapshots/COMMIT).
std::string name_of(const fs::path& source) {
  if (!fs::is_directory(source)) return source.stem().string();
  const std::string model = source.parent_path().parent_path().filename().string();
  if (source.parent_path().filename() == "snapshots" && model.starts_with("models--")) {
    return model.substr(model.rfind("--") + 2);
  }
  return source.filename().string();
}

// Identifies a file's version without reading it.
Json stamp_of(const fs::path& file) {
  struct stat found{};
  fail_input_if(::stat(file.c_str(), &found) != 0, "[import] ", file.string(), " cannot be read");
  return Json::array({file.filename().string(), found.st_size, found.st_mtim.tv_sec, found.st_mtim.tv_nsec});
}

// Returns what an import depends on: this program, and the source's files.
Json stamp_of_source(const fs::path& source) {
  const std::vector<std::string> parts = gguf_parts(source.string());
  std::vector<fs::path> files(parts.begin(), parts.end());
  if (fs::is_directory(source)) {
    files.clear();
    for (const auto& entry : fs::directory_iterator(source)) {
      const bool hidden = entry.path().filename().string().starts_with('.');
      if (!hidden && fs::is_regular_file(entry.path())) files.push_back(entry.path());
    }
    std::sort(files.begin(), files.end());
  }
  Json stamps = Json::array();
  for (const auto& file : files) stamps.push_back(stamp_of(file));
  return {{"program", version_line()}, {"source", source.string()}, {"files", std::move(stamps)}};
}

bool is_made(const std::string& run, const std::string& stamp, const Json& wanted) {
  std::error_code ignored;
  if (!fs::exists(run + "/config.json", ignored) || !fs::exists(stamp, ignored)) return false;
  return Json::parse(read_file(stamp), nullptr, /*allow_exceptions=*/false) == wanted;
}

// Only one process imports at a time; the others wait and use its result.
class ImportLock {
 public:
  explicit ImportLock(const std::string& folder)
      : file_(::open((folder + "/lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666)) {
    fail_input_if(file_.number() < 0 || ::flock(file_.number(), LOCK_EX) != 0, "[import] ", folder,
                  " cannot be written: name another folder with CORTADO_CACHE, or use `cortado import`");
  }

 private:
  Descriptor file_;
};

// Returns the first byte that is not white space; 0 if there is none.
char first_byte(const std::string& path) {
  std::ifstream file(path);
  char byte = 0;
  file >> byte;
  return byte;
}

bool is_foreign_config(const std::string& folder) {
  std::error_code ignored;
  if (!fs::exists(folder + "/config.json", ignored)) return false;
  try {
    const Json config = folder_config(folder);
    if (!config.is_object()) return false;
    if (!config.contains("model_type")) return config.contains("ssm_cfg");  // mamba_ssm's
    return config["model_type"] != kModelType;
  } catch (const InputError&) {  // whoever reads the folder reports the error
    return false;
  }
}

}  // namespace

bool is_pretrained(const std::string& path) {
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) return is_foreign_config(path) || is_published_rwkv(bare_tensors(path));
  return fs::is_regular_file(path, ignored) && is_gguf(path);
}

std::string Imported::summary() const {
  return concat(layers, " layers, ", with_commas(parameters), " parameters, ", human_bytes(static_cast<double>(bytes)));
}

std::vector<std::string> Imported::notices() const {
  std::vector<std::string> lines;
  if (!left_out.empty()) lines.push_back("left out: " + left_out);
  if (!no_chat.empty()) lines.push_back("no chat: " + no_chat);
  return lines;
}

ModelImport::ModelImport(const std::string& source, std::optional<int64_t> context)
    : source_(source),
      reader_(pretrained_reader(source, context)),
      tokenizer_(pretrained_tokenizer(source)),
      sampling_(pretrained_sampling(source)) {
  if (tokenizer_) check_tokenizer(source, *tokenizer_, reader_.vocabulary);
}

Imported ModelImport::write(const std::string& out, std::optional<at::ScalarType> dtype, WeightFormat format) const {
  const std::string origin = fs::path(source_).lexically_normal().string();
  Imported imported{.tokenizer = tokenizer_ != nullptr};
  write_output_folder(out, [&](const std::string& folder) {
    ProgressBar bar({.label = "reading", .unit = "parameters"});
    ReadWeights how{.dtype = dtype, .progress = [&](int64_t done, int64_t total) { bar.update_of(done, total); }};
    std::optional<NarrowWeights> narrow;
    if (is_narrow(format)) narrow.emplace(format);
    if (narrow) {
      how.take = [&](const ModelConfig& config, const std::string& name, const Tensor& weight) {
        imported.parameters += weight.numel();
        narrow->take(config, name, weight);
      };
    }
    const PretrainedModel model = reader_.read(how);
    bar.finish();
    if (narrow) {
      narrow->save(folder, origin);
      write_run_config(model.config, folder);
      imported.bytes = narrow->bytes();
    } else {
      write_pretrained(model, folder, origin);
    }
    for (const auto& [name, tensor] : model.weights) {
      imported.parameters += tensor.numel();
      imported.bytes += static_cast<int64_t>(tensor.nbytes());
    }
    imported.layers = static_cast<int64_t>(model.config.layers.size());
    imported.left_out = model.left_out;
    write_generation_config(sampling_, folder);
    if (tokenizer_) tokenizer_->save(folder + "/tokenizer");
  });
  if (tokenizer_) imported.no_chat = Chat(*tokenizer_).problem();
  return imported;
}

std::string run_of(const std::string& path, WeightFormat format) {
  std::error_code ignored;
  if (!is_pretrained(path)) {
    const bool other = fs::is_regular_file(path, ignored) && first_byte(path) != '{';
    fail_input_if(other, "[", path,
                  "] is no model: give the folder of a run or of a Hugging Face model, or a GGUF file");
    return path;
  }
  const fs::path source = fs::canonical(path);
  const std::string kind = is_narrow(format) ? "-" + weight_format_name(format) : "";
  const std::string entry = concat(cache_place(), "/", hash_text(source.string()), kind), stamp = entry + kStamp;
  const std::string run = concat(entry, "/", name_of(source));
  claim_output_directory(entry, /*refuse_used=*/false);
  const ImportLock lock(entry);
  const Json wanted = stamp_of_source(source);
  if (is_made(run, stamp, wanted)) return run;
  const ModelImport model(path);
  fs::remove_all(run);
  std::cerr << "importing " << path << ": it is opened for the first time, or has changed" << std::endl;
  const Stopwatch watch;
  const Imported imported = model.write(run, {}, format);
  write_file(stamp, wanted.dump(2) + "\n");
  std::cerr << imported.summary() << "; imported in " << human_seconds(watch.seconds()) << " into " << run
            << ", from where it will be opened from now on" << std::endl;
  for (const std::string& line : imported.notices()) std::cerr << line << std::endl;
  return run;
}

}  // namespace cortado
