// Sentiment of film reviews, byte by byte: IMDB in Long Range Arena (README.md).
#include <algorithm>
#include <filesystem>

#include "cortado/base/error.h"
#include "cortado/base/files.h"
#include "cortado/tasks/registry.h"

namespace cortado {
namespace {

struct TextOptions {
  std::string folder;     // aclImdb: {train,test}/{pos,neg}/ID_RATING.txt
  int64_t length = 4000;  // bytes read per review

  void fields(JsonFields& json) {
    json.text("folder", folder);
    json.integer("length", length, 1, 1 << 30);
  }
};

namespace fs = std::filesystem;

// Checks a name such as "17_8.txt": an id and a rating, at least 7 for a good review and at most 4 for a bad one.
bool is_review(const std::string& name, bool good) {
  const size_t mark = name.find('_');
  if (mark == std::string::npos || mark == 0 || !name.ends_with(".txt")) return false;
  const std::string id = name.substr(0, mark), rating = name.substr(mark + 1, name.size() - mark - 5);
  const auto digits = [](const std::string& text) {
    return !text.empty() && text.size() < 9 && text.find_first_not_of("0123456789") == std::string::npos;
  };
  return digits(id) && digits(rating) && (good ? std::stoi(rating) >= 7 : std::stoi(rating) <= 4);
}

struct Review {
  std::string path;
  int64_t label;
};

std::vector<Review> reviews_in(const std::string& folder) {
  std::vector<Review> reviews;
  for (const bool good : {false, true}) {
    const std::string part = folder + (good ? "/pos" : "/neg");
    fail_input_if(!fs::is_directory(part), "[", part, "] there is no such folder: is this aclImdb?");
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(part)) names.push_back(entry.path().filename().string());
    std::sort(names.begin(), names.end());
    for (const std::string& name : names) {
      fail_input_if(!is_review(name, good), "[", part, "] \"", name, "\" is not named as a ", good ? "good" : "bad",
                    " review is, ID_RATING.txt");
      reviews.push_back({part + "/" + name, good});
    }
    fail_input_if(names.empty(), "[", part, "] has no reviews");
  }
  return reviews;
}

class TextExamples : public TaskExamples {
 public:
  explicit TextExamples(const TextOptions& options) : options_(options) {
    need_folder(options.folder, "text", "aclImdb, unpacked (ai.stanford.edu/~amaas/data/sentiment)");
    train_ = reviews_in(options.folder + "/train");
    test_ = reviews_in(options.folder + "/test");
  }

  TaskShape shape() const override { return {.vocabulary = 256, .classes = 2, .length = options_.length}; }
  int64_t size(Split split) const override { return int64_t(list(split).size()); }
  Example example(Split split, int64_t index) const override {
    const Review& review = list(split)[size_t(index)];
    const std::string text = read_file(review.path).substr(0, size_t(options_.length));
    fail_input_if(text.empty(), "[", review.path, "] is empty");
    Example example;
    for (const char c : text) example.tokens.push_back(uint8_t(c));
    example.label = review.label;
    return example;
  }

  std::unique_ptr<Scores> scores(Split) const override { return class_scores(); }
  Json statistics(int64_t count) const override {
    count = std::min(count, size(Split::kTrain));
    double length = 0, good = 0;
    const int64_t all = size(Split::kTrain);
    for (int64_t i = 0; i < count; ++i) {  // evenly spaced, because the files are sorted by class
      const Example it = example(Split::kTrain, i * all / count);
      length += double(it.tokens.size()) / double(count);
      good += double(it.label) / double(count);
    }
    return {{"length", length}, {"good", good}};
  }
  std::string drawn(const Example& example) const override {
    return std::string(example.tokens.begin(), example.tokens.end()) +
           (example.label == 1 ? "\n-> good\n" : "\n-> bad\n");
  }

 private:
  // As in Long Range Arena, validation uses the test reviews.
  const std::vector<Review>& list(Split split) const { return split == Split::kTrain ? train_ : test_; }

  TextOptions options_;
  std::vector<Review> train_, test_;
};

}  // namespace

TaskKind text_task() {
  return {"text", "Long Range Arena: is a film review of IMDB good, byte by byte", opens<TextExamples, TextOptions>};
}

}  // namespace cortado
