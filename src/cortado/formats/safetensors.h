// A small, strict safetensors reader and writer.
#pragma once

#include <ATen/ATen.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cortado/base/files.h"

namespace cortado {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

struct TensorFile {
  NamedTensors tensors;  // in the file's order
  std::map<std::string, std::string> metadata;
  std::shared_ptr<const MappedFile> map = {};  // what the tensors of map_safetensors are views of
};

// Written beside its place and renamed into it (fsync'ed), so a crash leaves the old file or the new one. The metadata
// gets "checksum" (of all tensor bytes, of their names, types and shapes, and of the other metadata) so that a flipped
// bit is found on reading. Types: F64 F32 F16 BF16 I64 I32 I16 I8 U8 BOOL; others, and two tensors of one name, are a
// Failure.
void write_safetensors(const std::string& path, const TensorFile& file);

// Checks header length, JSON, types, shapes, offsets (inside the file, ascending, no overlap, no gap) and, where
// present, the checksum. Anything wrong is an InputError naming the file. Tensors are owned copies on the CPU.
TensorFile read_safetensors(const std::string& path);

// The same checks, but the tensors are views of the mapped file, which they keep open: for reading only, never to be
// written to. Only what is used of them takes memory; map->release() gives it back.
TensorFile map_safetensors(const std::string& path);

// 16 hexadecimal digits that depend on every tensor's name, type, shape and bytes (not on the device or the metadata).
std::string content_hash(const NamedTensors& tensors);

}  // namespace cortado
