// The tokenizers that lie beside or inside of pretrained models.
#include <algorithm>
#include <filesystem>
#include <limits>

#include "cortado/formats/gguf/file.h"
#include "cortado/tokenizers/import.h"

namespace cortado {
namespace {

std::vector<std::string> texts_of(const GgufFile& file, const std::string& key) {
  const auto views = file.texts(key);
  return {views.begin(), views.end()};
}

std::optional<bool> flag_of(const GgufFile& file, const std::string& key) {
  return file.has(key) ? std::optional(file.boolean(key)) : std::nullopt;
}

std::optional<int32_t> id_of(const GgufFile& file, const std::string& key) {
  if (!file.has(key)) return {};
  return static_cast<int32_t>(file.integer(key, 0, std::numeric_limits<int32_t>::max()));
}

VocabularyMetadata vocabulary_of(const GgufFile& file) {
  const std::string key = "tokenizer.ggml.";
  VocabularyMetadata vocabulary;
  vocabulary.model = file.text(key + "model");
  vocabulary.pre = file.text(key + "pre", vocabulary.pre);
  vocabulary.tokens = texts_of(file, key + "tokens");
  vocabulary.merges = texts_of(file, key + "merges");
  for (const double score : file.numbers(key + "scores")) vocabulary.scores.push_back(static_cast<float>(score));
  for (const double type : file.numbers(key + "token_type", /*whole=*/true)) {
    vocabulary.types.push_back(static_cast<int32_t>(std::clamp(type, 0.0, 100.0)));
  }
  vocabulary.begin = id_of(file, key + "bos_token_id");
  vocabulary.end = id_of(file, key + "eos_token_id");
  vocabulary.unknown = id_of(file, key + "unknown_token_id");
  vocabulary.padding = id_of(file, key + "padding_token_id");
  for (const char* name : {"eot_token_id", "eom_token_id"}) {
    if (const auto id = id_of(file, key + name)) vocabulary.stops.push_back(*id);
  }
  vocabulary.add_begin = flag_of(file, key + "add_bos_token");
  vocabulary.add_end = flag_of(file, key + "add_eos_token");
  vocabulary.add_space = flag_of(file, key + "add_space_prefix");
  vocabulary.remove_extra_spaces = file.boolean(key + "remove_extra_whitespaces", false);
  vocabulary.chat_template = file.text("tokenizer.chat_template", "");
  return vocabulary;
}

}  // namespace

std::shared_ptr<Tokenizer> pretrained_tokenizer(const std::string& source) {
  namespace fs = std::filesystem;
  if (fs::is_directory(source)) {
    const bool there = fs::exists(source + "/tokenizer.json") || fs::exists(source + "/tokenizer.model");
    return there ? import_tokenizer(source) : nullptr;
  }
  const GgufFile file(source);
  return file.has("tokenizer.ggml.model") ? import_vocabulary(vocabulary_of(file), source) : nullptr;
}

}  // namespace cortado
