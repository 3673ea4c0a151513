// The C interface of libcortado_sentencepiece.so, which alone is linked to SentencePiece.
//
// Why a library of its own, opened with dlopen: libsentencepiece and torch's libc10 both export a variable called
// FLAGS_minloglevel, 32 bytes of it in the first, 4 in the second. Linked into one process, the dynamic linker makes
// them one, and SentencePiece's constructor writes over whatever libc10 keeps behind its own. The same threatens
// protobuf, of which both carry a copy. Opened with RTLD_DEEPBIND, SentencePiece finds its own symbols first. Nothing
// but plain data crosses this interface, so neither side frees, throws or prints what the other one owns.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

// Takes bytes during a call; the memory is the caller's only until it returns.
using CortadoSink = void (*)(void* context, const char* bytes, size_t count);
// Gives the next training sentence, valid until the next call; false at the end. Must not throw.
using CortadoSentences = bool (*)(void* context, const char** text, size_t* count);

// The only exported function. Learns a byte-pair model with byte fallback, no normalisation. True: `result` got the
// model; false: the reason.
bool cortado_sentencepiece(CortadoSentences next, void* sentences, int32_t vocabulary, CortadoSink result,
                           void* context);
}

namespace cortado {

// Opens the library on first use. Missing or unreadable: Failure. Safe to call from several threads; stays open to the
// end of the process.
decltype(&cortado_sentencepiece) sentencepiece_trainer();

}  // namespace cortado
