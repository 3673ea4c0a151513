#include "cortado/tasks/ruler/ruler.h"

#include <algorithm>
#include <limits>

#include "cortado/base/error.h"

namespace cortado {

namespace {

std::string trimmed_of_spaces(const std::string& text) {
  constexpr const char* kSpaces = " \t\r\n\v\f";
  const size_t begin = text.find_first_not_of(kSpaces);
  return begin == std::string::npos ? "" : text.substr(begin, text.find_last_not_of(kSpaces) - begin + 1);
}

std::string in_lower_case(std::string text) {
  for (char& c : text) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return text;
}

}  // namespace

const std::vector<RulerKind>& ruler_kinds() {
  static const std::vector<RulerKind> all = [] {
    std::vector<RulerKind> kinds = niah_kinds();
    for (const auto& more : {variable_kinds(), word_kinds(), document_kinds()}) {
      kinds.insert(kinds.end(), more.begin(), more.end());
    }
    return kinds;
  }();
  return all;
}

const RulerKind& ruler_kind(const std::string& name) {
  const std::string bare = name.starts_with("niah_") ? name.substr(5) : name;
  std::vector<std::string> known;
  for (const RulerKind& kind : ruler_kinds()) {
    if (kind.name == bare) return kind;
    known.push_back(kind.name);
  }
  throw InputError(concat("[ruler] unknown task \"", name, "\"; there are ", joined(known, ", ")));
}

RulerQuestions::RulerQuestions(const RulerKind& kind, RulerOptions options, const RulerMaterial& material)
    : kind_(kind), options_(std::move(options)), task_(kind.open(options_, material)) {
  usual_size_ = largest_size(0, task_->least(0)).value_or(0);
}

std::optional<RulerQuestion> RulerQuestions::make(int64_t index) const {
  const auto size = largest_size(index, std::clamp(usual_size_, task_->least(index), task_->most(index)));
  return size ? std::optional(make(index, *size)) : std::nullopt;
}

void RulerQuestions::refuse(int64_t index) const {
  throw InputError(concat("[ruler] a length of ", options_.length, " tokens has no room for ", kind_.name,
                          ": its shortest prompt has ", options_.count(make(index, task_->least(index))), ", and ",
                          kind_.answer_tokens, " are kept for the answer"));
}

bool RulerQuestions::fits(int64_t index, int64_t size) const {
  return options_.count(make(index, size)) + kind_.answer_tokens <= options_.length;
}

// Doubles its steps up or down from `start`, then bisects.
std::optional<int64_t> RulerQuestions::largest_size(int64_t index, int64_t start) const {
  const int64_t least = task_->least(index), most = task_->most(index);
  std::optional<int64_t> fitting, too_large;
  for (int64_t size = start, step = 1; !fitting || !too_large; step *= 2) {
    if (fits(index, size)) {
      fitting = size;
      if (size == most) return most;
      size = std::min(most, size + step);
    } else if (size == least) {
      return std::nullopt;
    } else {
      too_large = size;
      size = std::max(least, size - step);
    }
  }
  while (*too_large - *fitting > 1) {
    const int64_t middle = *fitting + (*too_large - *fitting) / 2;
    (fits(index, middle) ? fitting : too_large) = middle;
  }
  return fitting;
}

double ruler_score(const std::string& answer, const std::vector<std::string>& references, bool any_reference) {
  std::string read = trimmed_of_spaces(answer);
  for (char& c : read) c = static_cast<unsigned char>(c) < 0x20 ? '\n' : c;
  read = in_lower_case(trimmed_of_spaces(read));
  const auto found = std::count_if(references.begin(), references.end(), [&](const std::string& reference) {
    return read.find(in_lower_case(reference)) != std::string::npos;
  });
  return any_reference ? double(found > 0) : double(found) / double(references.size());
}

}  // namespace cortado
