// Image classification pixel by pixel: CIFAR-10 in grey (README.md).
#include <array>
#include <cmath>
#include <limits>

#include "cortado/base/error.h"
#include "cortado/base/files.h"
#include "cortado/base/random.h"
#include "cortado/tasks/registry.h"

namespace cortado {
namespace {

struct ImageOptions {
  std::string folder;             // of data_batch_1.bin .. data_batch_5.bin and test_batch.bin
  std::string input = "tokens";   // bytes as tokens; or "numbers": (x / 255 - 0.5) / 0.5
  double validation_share = 0.1;  // of the training images, drawn by `seed`
  int64_t seed = 0;

  void fields(JsonFields& json) {
    json.text("folder", folder);
    json.choice("input", input, {"tokens", "numbers"});
    json.number("validation_share", validation_share, 0, 0.9);
    json.integer("seed", seed, 0, std::numeric_limits<int64_t>::max());
  }
};

constexpr int64_t kImagePixels = int64_t{32} * 32, kRecordBytes = 1 + 3 * kImagePixels, kThings = 10;
constexpr std::array<const char*, kThings> kThingNames = {"airplane", "automobile", "bird",  "cat",  "deer",
                                                          "dog",      "frog",       "horse", "ship", "truck"};

// TensorFlow's rgb_to_grayscale for images of bytes.
uint8_t grey(uint8_t red, uint8_t green, uint8_t blue) {
  const float light = 0.2989F * float(red) / 255 + 0.587F * float(green) / 255 + 0.114F * float(blue) / 255;
  return uint8_t(light * 255.5F);
}

// A file of records: one byte for the label, then 1,024 bytes each for red, green and blue.
struct Records {
  explicit Records(const std::string& path) : file(path) {
    fail_input_if(file.size() == 0 || int64_t(file.size()) % kRecordBytes != 0, "[", path,
                  "] is not of CIFAR-10's binary ", "version: ", file.size(), " bytes are no whole records of ",
                  kRecordBytes);
    for (int64_t i = 0; i < count(); ++i) {
      fail_input_if(bytes(i)[0] >= kThings, "[", path, "] record ", i, " has the label ", int(bytes(i)[0]),
                    ", there are ", kThings, " classes");
    }
  }
  int64_t count() const { return int64_t(file.size()) / kRecordBytes; }
  const uint8_t* bytes(int64_t i) const { return reinterpret_cast<const uint8_t*>(file.data()) + i * kRecordBytes; }
  MappedFile file;
};

class ImageExamples : public TaskExamples {
 public:
  explicit ImageExamples(const ImageOptions& options) : options_(options) {
    need_folder(options.folder, "image", "CIFAR-10's binary version, unpacked (www.cs.toronto.edu/~kriz/cifar.html)");
    for (int part = 1; part <= 5; ++part) {
      files_.push_back(std::make_unique<Records>(concat(options.folder, "/data_batch_", part, ".bin")));
    }
    files_.push_back(std::make_unique<Records>(options.folder + "/test_batch.bin"));
    int64_t train = 0;
    for (size_t file = 0; file < 5; ++file) train += files_[file]->count();
    const auto order = RandomStream(uint64_t(options.seed), "image validation").permutation(train, 0);
    const auto held = int64_t(std::lround(options.validation_share * double(train)));
    validation_.assign(order.begin(), order.begin() + held);
    train_.assign(order.begin() + held, order.end());
  }

  TaskShape shape() const override { return picture_shape(options_.input, kImagePixels, kThings); }
  int64_t size(Split split) const override {
    if (split == Split::kTest) return files_.back()->count();
    return int64_t((split == Split::kTrain ? train_ : validation_).size());
  }

  Example example(Split split, int64_t index) const override {
    const uint8_t* record = bytes(split, index);
    Example example;
    example.label = record[0];
    for (int64_t i = 1; i <= kImagePixels; ++i) {
      add_pixel(example, options_.input, grey(record[i], record[i + kImagePixels], record[i + 2 * kImagePixels]));
    }
    return example;
  }

  std::unique_ptr<Scores> scores(Split) const override { return class_scores(); }
  Json statistics(int64_t count) const override;
  std::string drawn(const Example& example) const override {
    return drawn_image(example, 32) + kThingNames[size_t(example.label)] + "\n";
  }

 private:
  const uint8_t* bytes(Split split, int64_t index) const {
    if (split == Split::kTest) return files_.back()->bytes(index);
    index = (split == Split::kTrain ? train_ : validation_)[size_t(index)];
    size_t file = 0;
    for (; index >= files_[file]->count(); ++file) index -= files_[file]->count();
    return files_[file]->bytes(index);
  }

  ImageOptions options_;
  std::vector<std::unique_ptr<Records>> files_;
  std::vector<int64_t> train_, validation_;
};

Json ImageExamples::statistics(int64_t count) const {
  count = std::min(count, size(Split::kTrain));
  std::array<double, kThings> shares{};
  for (int64_t i = 0; i < count; ++i) shares[bytes(Split::kTrain, i)[0]] += 1 / double(count);
  Json found = Json::object();
  for (size_t c = 0; c < shares.size(); ++c) found[kThingNames[c]] = shares[c];
  return found;
}

}  // namespace

TaskKind image_task() {
  return {"image", "Long Range Arena: what a picture of CIFAR-10 shows, pixel by pixel",
          opens<ImageExamples, ImageOptions>};
}

}  // namespace cortado
