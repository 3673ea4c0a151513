#include "cortado/tasks/examples.h"

#include <algorithm>

namespace cortado {
namespace {

class ClassScores : public Scores {
 public:
  void add(int64_t, const Example& example, std::span<const float> logits) override {
    right_ += largest(logits) == example.label;
    ++count_;
  }
  Json result() const override { return {{"accuracy", count_ > 0 ? double(right_) / double(count_) : 0.0}}; }

 private:
  int64_t right_ = 0, count_ = 0;
};

}  // namespace

const Words<Split> kSplits = {{"train", Split::kTrain}, {"validation", Split::kValidation}, {"test", Split::kTest}};

std::vector<int64_t> TaskExamples::places(const Example& example) const {
  std::vector<int64_t> places;
  for (size_t i = 0; i < example.targets.size(); ++i) {
    if (example.targets[i] >= 0) places.push_back(int64_t(i));
  }
  return places;
}

TaskShape picture_shape(const std::string& input, int64_t pixels, int64_t classes) {
  if (input == "tokens") return {.vocabulary = 256, .classes = classes, .length = pixels};
  return {.channels = 1, .classes = classes, .length = pixels};
}

void add_pixel(Example& example, const std::string& input, int64_t byte) {
  if (input == "tokens") {
    example.tokens.push_back(byte);
  } else {
    example.numbers.push_back((float(byte) / 255 - 0.5F) / 0.5F);
  }
}

int64_t largest(std::span<const float> row) { return std::max_element(row.begin(), row.end()) - row.begin(); }

// Draws two rows of pixels per line with half blocks: the upper and the lower pixel are each light or dark.
std::string drawn_image(const Example& example, int64_t columns) {
  const auto count = int64_t(std::max(example.tokens.size(), example.numbers.size()));
  const auto light = [&](int64_t i) {
    if (i >= count) return false;
    return example.tokens.empty() ? example.numbers[size_t(i)] > 0 : example.tokens[size_t(i)] > 127;
  };
  std::string text;
  for (int64_t top = 0; top < count; top += 2 * columns) {
    for (int64_t i = top; i < top + columns; ++i) {
      text += light(i) ? (light(i + columns) ? "█" : "▀") : light(i + columns) ? "▄" : " ";
    }
    text += "\n";
  }
  return text;
}

std::unique_ptr<Scores> class_scores() { return std::make_unique<ClassScores>(); }

}  // namespace cortado
