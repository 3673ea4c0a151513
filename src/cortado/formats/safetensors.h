// A strict reader and writer for safetensors files.
#pragma once

#include <ATen/ATen.h>

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cortado/base/files.h"

namespace cortado {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

struct TensorFile {
  NamedTensors tensors;  // in the order of their data in the file
  std::map<std::string, std::string> metadata;
  std::shared_ptr<const MappedFile> map = {};  // the file that the tensors of map_safetensors view
  std::string path = {};                       // of the file that was read, or a name for messages
};

// Writes a temporary file, syncs it, and renames it to `path`, so a crash leaves either the old file or the new one.
// Adds "checksum" to the metadata: it covers all tensors (bytes, names, types, shapes) and the other metadata, so
// reading detects a flipped bit. Types: F64 F32 F16 BF16 I64 I32 I16 I8 U8 BOOL F8_E4M3. Throws Failure for other
// types and for two tensors of one name.
void write_safetensors(const std::string& path, const TensorFile& file);
std::string safetensors_bytes(const TensorFile& file);  // what would be written

// Checks the length of the header, the JSON, types, shapes, offsets (inside the file, ascending, no overlap, no gap)
// and, if present, the checksum. Throws an InputError that names the file if a check fails. The tensors are owned
// copies on the CPU.
TensorFile read_safetensors(const std::string& path);
TensorFile parse_safetensors(std::string_view bytes, const std::string& name);  // `name`: for messages

// Like read_safetensors, but the tensors are views of the mapped file, which they keep open. They must not be written
// to. Only the pages that are used take memory; map->release() frees them.
TensorFile map_safetensors(const std::string& path);

// 16 hexadecimal digits that depend on every tensor's name, type, shape and bytes, but not on the device or the
// metadata.
std::string content_hash(const NamedTensors& tensors);

// A text as a tensor of its bytes, uint8 [bytes], and the text of such a tensor.
at::Tensor tensor_of_text(std::string_view text);
std::string text_of_tensor(const at::Tensor& bytes);

}  // namespace cortado
