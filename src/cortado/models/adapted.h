// Models with low-rank adapters (nn/lora.h) that share all other weights with their base.
#pragma once

#include <memory>
#include <string>

#include "cortado/models/language_model.h"

namespace cortado {

// Returns a model with the adapters of `path` and the weights of `base`, in the format that they have there, for
// inference. The adapters are those of `cortado train --lora` (a run, or its lora.safetensors), or a folder of peft
// with adapter_config.json and adapter_model.safetensors, for Llama and its descendants or with our names of modules.
// Both models stay usable; neither may be trained. Throws InputError if the file is damaged or does not fit the model.
std::shared_ptr<LanguageModel> with_adapters(const LanguageModel& base, const std::string& path);

}  // namespace cortado
