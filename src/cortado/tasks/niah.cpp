#include "cortado/tasks/niah.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "cortado/base/error.h"
#include "cortado/base/files.h"

namespace cortado {

namespace {

constexpr const char* kNoise =
    "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.";
constexpr int kDepths = 40;  // evenly from 0 to 100, rounded

// What the draws of one question are for.
enum Draw : uint64_t { kAdjective, kNoun, kPlace, kNumber, kUuidHigh, kUuidLow };

std::vector<std::string> read_words(const std::string& path) {
  const std::string text = read_file(path);
  std::vector<std::string> words;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    if (end > begin) words.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  fail_input_if(words.empty(), "[", path, "] has no words");
  return words;
}

// Version 4 in RFC 4122's form.
std::string uuid_of(uint64_t high, uint64_t low) {
  high = (high & ~uint64_t{0xF000}) | 0x4000;
  low = (low & ~(uint64_t{3} << 62)) | uint64_t{1} << 63;
  char text[40];
  std::snprintf(text, sizeof text, "%08llx-%04llx-%04llx-%04llx-%012llx", static_cast<unsigned long long>(high >> 32),
                static_cast<unsigned long long>(high >> 16 & 0xFFFF), static_cast<unsigned long long>(high & 0xFFFF),
                static_cast<unsigned long long>(low >> 48), static_cast<unsigned long long>(low & 0xFFFFFFFFFFFFULL));
  return text;
}

std::string join(const std::vector<std::string>& parts, char separator) {
  std::string text;
  for (const auto& part : parts) text += (text.empty() ? "" : std::string(1, separator)) + part;
  return text;
}

std::string trimmed(const std::string& text) {
  constexpr const char* kSpaces = " \t\r\n\v\f";
  const size_t begin = text.find_first_not_of(kSpaces);
  return begin == std::string::npos ? "" : text.substr(begin, text.find_last_not_of(kSpaces) - begin + 1);
}

std::string lower(std::string text) {
  for (char& c : text) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return text;
}

}  // namespace

const std::vector<NiahTask>& niah_tasks() {
  static const std::vector<NiahTask> tasks = {{"single_1", HaystackKind::kNoise, ValueKind::kNumber},
                                              {"single_2", HaystackKind::kEssay, ValueKind::kNumber},
                                              {"single_3", HaystackKind::kEssay, ValueKind::kUuid}};
  return tasks;
}

const NiahTask& niah_task(const std::string& name) {
  for (const auto& task : niah_tasks()) {
    if (task.name == name) return task;
  }
  throw InputError(concat("[niah] unknown task \"", name, "\"; there are single_1, single_2 and single_3"));
}

NiahWords NiahWords::read(const std::string& adjectives_file, const std::string& nouns_file) {
  return {read_words(adjectives_file), read_words(nouns_file)};
}

NiahQuestions::NiahQuestions(NiahOptions options, const NiahWords& words, const Essay& essay, Count count)
    : options_(std::move(options)),
      words_(words),
      essay_(essay),
      count_(std::move(count)),
      random_(static_cast<uint64_t>(options_.seed), concat("niah ", options_.task.name, " ", options_.length)),
      usual_size_(std::max<int64_t>(1, largest_size(0, 1))) {}

NiahQuestion NiahQuestions::make(int64_t index) const {
  const int64_t size = largest_size(index, usual_size_);
  fail_input_if(size < 1, "[niah] a length of ", options_.length, " tokens has no room for ", options_.task.name,
                ": its shortest prompt has ", count_(make(index, 1)), ", and ", options_.answer_tokens,
                " are kept for the answer");
  return make(index, size);
}

NiahQuestion NiahQuestions::make(int64_t index, int64_t size) const {
  const auto at = static_cast<uint64_t>(index);
  NiahQuestion question;
  question.size = size;
  question.key = concat(words_.adjectives[random_.below(words_.adjectives.size(), at, kAdjective)], "-",
                        words_.nouns[random_.below(words_.nouns.size(), at, kNoun)]);
  const bool number = options_.task.value == ValueKind::kNumber;
  question.value = number ? std::to_string(1000000 + random_.below(9000000, at, kNumber))
                          : uuid_of(random_.bits(at, kUuidHigh), random_.bits(at, kUuidLow));
  const std::string kind = number ? "number" : "uuid";
  const std::string needle =
      concat("One of the special magic ", kind, "s for ", question.key, " is: ", question.value, ".");
  const bool noise = options_.task.haystack == HaystackKind::kNoise;
  auto parts = noise ? std::vector<std::string>(static_cast<size_t>(size), kNoise) : essay_.sentences(size);
  size_t place = 0;
  if (noise) {
    place = static_cast<size_t>(random_.uniform(at, kPlace) * static_cast<double>(size));
    question.depth = static_cast<double>(place) / static_cast<double>(size);
  } else {
    const auto step = static_cast<double>(random_.below(kDepths, at, kPlace));
    const auto percent = static_cast<size_t>(std::round(step * 100 / (kDepths - 1)));
    place = parts.size() * percent / 100;
    question.depth = static_cast<double>(percent) / 100;
  }
  parts.insert(parts.begin() + static_cast<std::ptrdiff_t>(place), needle);
  const std::string about =
      concat("the special magic ", kind, " for ", question.key, " mentioned in the provided text");
  question.text = concat("A special magic ", kind, " is hidden within the following text. Make sure to memorize it. I ",
                         "will quiz you about the ", kind, " afterwards.\n", join(parts, noise ? '\n' : ' '),
                         "\nWhat is ", about, "?");
  question.answer_prefix = concat(" The", about.substr(3), " is");
  return question;
}

bool NiahQuestions::fits(int64_t index, int64_t size) const {
  return count_(make(index, size)) + options_.answer_tokens <= options_.length;
}

// By steps that double, up or down from `start`, then by halves. 0: none fits.
int64_t NiahQuestions::largest_size(int64_t index, int64_t start) const {
  int64_t fitting = 0, too_large = 0;  // 0: none known yet
  for (int64_t size = start, step = 1; !fitting || !too_large; step *= 2) {
    if (fits(index, size)) {
      fitting = size;
      size += step;
    } else if (size == 1) {
      return 0;
    } else {
      too_large = size;
      size = std::max<int64_t>(1, size - step);
    }
  }
  while (too_large - fitting > 1) {
    const int64_t middle = fitting + (too_large - fitting) / 2;
    (fits(index, middle) ? fitting : too_large) = middle;
  }
  return fitting;
}

bool niah_correct(const std::string& answer, const std::string& value) {
  std::string read = trimmed(answer);
  for (char& c : read) c = static_cast<unsigned char>(c) < 0x20 ? '\n' : c;
  return lower(trimmed(read)).find(lower(value)) != std::string::npos;
}

}  // namespace cortado
