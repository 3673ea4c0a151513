// Models that are split into several files, NAME-00001-of-00003.gguf and so on, as llama.cpp's converter and
// llama-gguf-split write them. The first part has the metadata, every part its own tensors.
#include <cstdio>
#include <filesystem>
#include <regex>

#include "cortado/formats/gguf/file.h"

namespace cortado {
namespace {

constexpr int64_t kMostParts = 99999;

// "-00002-of-00003.gguf" for number 1 of 3.
std::string ending_of_part(int64_t number, int64_t count) {
  char text[48];
  std::snprintf(text, sizeof text, "-%05d-of-%05d.gguf", static_cast<int>(number + 1), static_cast<int>(count));
  return text;
}

}  // namespace

std::vector<std::string> gguf_parts(const std::string& path) {
  static const std::regex first(R"((.*)-00001-of-(\d{5})\.gguf)");
  std::vector<std::string> files = {path};
  std::smatch found;
  if (!std::regex_match(path, found, first)) return files;
  const int64_t count = std::stoll(found[2]);
  std::error_code ignored;
  for (int64_t i = 1; i < count; ++i) {
    const std::string part = found[1].str() + ending_of_part(i, count);
    if (std::filesystem::exists(part, ignored)) files.push_back(part);
  }
  return files;
}

std::shared_ptr<const GgufFile> GgufFile::open_part(const std::string& path, int64_t number, int64_t count) const {
  std::error_code ignored;
  fail_if(!std::filesystem::exists(path, ignored), "is part 1 of ", count, "; part ", number + 1, ", ", path,
          ", is missing");
  const auto map = std::make_shared<const MappedFile>(path);
  auto part = std::make_shared<GgufFile>(map->text(), path);
  part->map_ = map;
  JsonReader said = part->metadata();
  const int64_t its_number = said.integer("split.no", 0, kMostParts, 0);
  const int64_t its_count = said.integer("split.count", 0, kMostParts, 0);
  part->fail_if(its_count == 0, "is no part of a split model, expected part ", number + 1, " of ", count);
  part->fail_if(its_number != number || its_count != count, "says that it is part ", its_number + 1, " of ", its_count,
                ", expected ", number + 1, " of ", count);
  return part;
}

void GgufFile::add_parts() {
  if (!has("split.count")) return;
  JsonReader said = metadata();
  const int64_t count = said.integer("split.count", 0, kMostParts);
  if (count < 2) return;
  const int64_t own = said.integer("split.no", 0, count - 1);
  const std::string ending = ending_of_part(own, count);
  fail_if(!name_.ends_with(ending), "is part ", own + 1, " of ", count, " of a model, and its name does not end in ",
          ending, ", so the other parts are not found");
  const std::string stem = name_.substr(0, name_.size() - ending.size());
  fail_if(own != 0, "is part ", own + 1, " of ", count, " of a model; open the first part, ", stem,
          ending_of_part(0, count));
  for (int64_t i = 1; i < count; ++i) {
    parts_.push_back(open_part(stem + ending_of_part(i, count), i, count));
    for (const GgufTensor& tensor : parts_.back()->tensors()) {
      fail_if(!places_.emplace(tensor.name, tensors_.size()).second, "and another part have the tensor ",
              printable(tensor.name));
      tensors_.push_back(tensor);
    }
  }
  const auto found = static_cast<int64_t>(tensors_.size());
  const int64_t expected = said.integer("split.tensors.count", 0, int64_t{1} << 31, found);
  fail_if(found != expected, "and its other parts have ", found, " tensors, expected ", expected);
}

}  // namespace cortado
