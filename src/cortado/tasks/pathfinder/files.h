// Pathfinder's images in the format of Long Range Arena: PNG files, and text files with their labels.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cortado/tasks/examples.h"

namespace cortado {

// An image of a folder such as lra_release's pathfinder32/curv_contour_length_14.
struct PathfinderFile {
  std::string path;
  bool connected;
};

// Lists the images named in FOLDER/metadata/*.npy, batch after batch. Skips empty files, of which the release has one.
// InputError for a missing folder or image, and for a line in another format.
std::vector<PathfinderFile> pathfinder_files(const std::string& folder);

// Reads a grey image of size x size pixels, row by row. InputError for another size, and if it is not a PNG file.
std::vector<uint8_t> read_grey_png(const std::string& path, int64_t size);
void write_grey_png(const std::string& path, const std::vector<uint8_t>& pixels, int64_t size);

// Writes FOLDER/imgs and FOLDER/metadata with the first examples of each split, at most `most` for training. The order
// train, validation, test and the ratio 8 to 1 to 1 make reading the folder give the same splits. The task's input may
// be "tokens" or "numbers".
void write_pathfinder(const TaskExamples& task, const std::string& folder, int64_t most);

}  // namespace cortado
