// Opens libcortado_sentencepiece.so on first use (bridge.h says why it is opened and not linked).
#pragma once

#include "cortado/tokenizers/sentencepiece/bridge.h"

namespace cortado {

// Missing or unreadable library: Failure. Safe to call from several threads; stays open to the end of the process.
decltype(&cortado_sentencepiece) sentencepiece_trainer();

}  // namespace cortado
