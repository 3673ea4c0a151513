#include "cortado/tasks/pathfinder/files.h"

#include <png.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <sstream>

#include "cortado/base/error.h"
#include "cortado/base/files.h"

namespace cortado {
namespace {

constexpr int64_t kPicturesInABatch = 1000;

// Sorted by the batch's number.
std::vector<std::string> metadata_files(const std::string& folder) {
  const std::string metadata = folder + "/metadata";
  fail_input_if(!std::filesystem::is_directory(metadata), "[", metadata,
                "] there is no such folder: is this a difficulty of lra_release's pathfinder, as "
                "pathfinder32/curv_contour_length_14?");
  std::vector<std::pair<int64_t, std::string>> batches;
  for (const auto& entry : std::filesystem::directory_iterator(metadata)) {
    const std::string stem = entry.path().stem().string();
    const bool good = entry.path().extension() == ".npy" && !stem.empty() && stem.size() < 10 &&
                      stem.find_first_not_of("0123456789") == std::string::npos;
    fail_input_if(!good, "[", entry.path().string(), "] is not named as a batch's metadata is, NUMBER.npy");
    batches.emplace_back(std::stoll(stem), entry.path().string());
  }
  std::sort(batches.begin(), batches.end());
  std::vector<std::string> files;
  for (const auto& [number, path] : batches) files.push_back(path);
  return files;
}

// Parses "imgs/0 sample_7.png 7 1 ...": the fourth word is the label.
PathfinderFile file_of_line(const std::string& line, const std::string& folder, const std::string& place) {
  std::istringstream words(line);
  std::string batch, name, number, label;
  words >> batch >> name >> number >> label;
  const bool good = batch.starts_with("imgs/") && name.ends_with(".png") && (label == "0" || label == "1") &&
                    (batch + name).find("..") == std::string::npos;
  fail_input_if(!good, "[", place, "] expected \"imgs/BATCH sample_N.png N LABEL ...\", got \"", line.substr(0, 60),
                "\"");
  return {folder + "/" + batch + "/" + name, label == "1"};
}

std::vector<uint8_t> pixels_of(const Example& example) {
  std::vector<uint8_t> pixels;
  for (const int64_t token : example.tokens) pixels.push_back(uint8_t(token));
  for (const float number : example.numbers) pixels.push_back(uint8_t(std::lround((number * 0.5F + 0.5F) * 255)));
  return pixels;
}

}  // namespace

std::vector<PathfinderFile> pathfinder_files(const std::string& folder) {
  std::vector<PathfinderFile> files;
  for (const std::string& path : metadata_files(folder)) {
    const std::string text = read_file(path);
    fail_input_if(text.starts_with("\x93NUMPY"), "[", path,
                  "] is a numpy array, as the generator writes it; Long Range Arena's files are lines of text");
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      if (line.empty()) continue;
      const PathfinderFile file = file_of_line(line, folder, path);
      std::error_code missing;
      if (std::filesystem::file_size(file.path, missing) == 0) continue;
      fail_input_if(bool(missing), "[", file.path, "] there is no such picture, though ", path, " names it");
      files.push_back(file);
    }
  }
  fail_input_if(files.empty(), "[", folder, "] has no pictures");
  return files;
}

std::vector<uint8_t> read_grey_png(const std::string& path, int64_t size) {
  png_image image;
  std::memset(&image, 0, sizeof image);
  image.version = PNG_IMAGE_VERSION;
  if (!png_image_begin_read_from_file(&image, path.c_str())) {
    throw InputError(concat("[", path, "] is not a PNG picture: ", image.message));
  }
  if (image.width != size || image.height != size) {
    const std::string found = concat(image.width, " x ", image.height);
    png_image_free(&image);
    throw InputError(concat("[", path, "] has ", found, " pixels, and \"size\" is ", size));
  }
  image.format = PNG_FORMAT_GRAY;
  std::vector<uint8_t> pixels(PNG_IMAGE_SIZE(image));
  if (!png_image_finish_read(&image, nullptr, pixels.data(), 0, nullptr)) {
    throw InputError(concat("[", path, "] is a broken PNG picture: ", image.message));
  }
  return pixels;
}

void write_grey_png(const std::string& path, const std::vector<uint8_t>& pixels, int64_t size) {
  png_image image;
  std::memset(&image, 0, sizeof image);
  image.version = PNG_IMAGE_VERSION;
  image.width = image.height = png_uint_32(size);
  image.format = PNG_FORMAT_GRAY;
  if (!png_image_write_to_file(&image, path.c_str(), 0, pixels.data(), 0, nullptr)) {
    throw Failure(concat("[", path, "] cannot be written: ", image.message));
  }
}

void write_pathfinder(const TaskExamples& task, const std::string& folder, int64_t most) {
  const int64_t size = std::lround(std::sqrt(double(task.shape().length)));
  // The largest tenth that all splits can fill in the ratio 8 to 1 to 1.
  const int64_t part = std::min({std::max<int64_t>(1, std::min(most, task.size(Split::kTrain)) / 8),
                                 task.size(Split::kValidation), task.size(Split::kTest)});
  std::string lines;
  int64_t number = 0;
  const auto end_batch = [&] {
    write_file(concat(folder, "/metadata/", (number - 1) / kPicturesInABatch, ".npy"), lines);
    lines.clear();
  };
  std::filesystem::create_directories(folder + "/metadata");
  for (const auto& [split, count] : {std::pair{Split::kTrain, std::min(8 * part, task.size(Split::kTrain))},
                                     std::pair{Split::kValidation, part}, std::pair{Split::kTest, part}}) {
    for (int64_t i = 0; i < count; ++i, ++number) {
      if (number > 0 && number % kPicturesInABatch == 0) end_batch();
      const Example example = task.example(split, i);
      const std::string batch = concat("imgs/", number / kPicturesInABatch);
      const std::string name = concat("sample_", number % kPicturesInABatch, ".png");
      std::filesystem::create_directories(folder + "/" + batch);
      write_grey_png(concat(folder, "/", batch, "/", name), pixels_of(example), size);
      lines += concat(batch, " ", name, " ", number % kPicturesInABatch, " ", example.label, "\n");
    }
  }
  end_batch();
}

}  // namespace cortado
