// Models of ours as other programs read them.
#pragma once

#include <optional>
#include <string>

#include "cortado/models/language_model.h"
#include "cortado/models/pretrained/decoder.h"

namespace cortado {

// What a Hugging Face config can say about a model of ours: softmax or windows in every layer, rotary positions, RMS
// norms, SwiGLU (or GeGLU with all that is Gemma-2's). Another model: InputError that names what does not fit.
PretrainedDecoder decoder_of(const ModelConfig& config);

// Writes FOLDER/config.json (as transformers 4 had it, which 5 reads as well) and model.safetensors, as the class that
// fits: gemma2, qwen2 (biases on q, k and v), mistral (windows) or llama.
void export_hugging_face(const LanguageModel& model, const std::string& folder, at::ScalarType dtype);

}  // namespace cortado
