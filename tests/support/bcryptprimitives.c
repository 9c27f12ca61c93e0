/* Wine 8, which Debian 12 has, lacks this library of Windows; Rust's programs want its one function from it. */
__declspec(dllimport) unsigned char __stdcall SystemFunction036(void *buffer, unsigned long size); /* RtlGenRandom */

__declspec(dllexport) int __stdcall ProcessPrng(unsigned char *buffer, unsigned long long size) {
    while (size) {
        unsigned long part = size > 0x10000000 ? 0x10000000 : (unsigned long)size;
        if (!SystemFunction036(buffer, part)) return 0;
        buffer += part;
        size -= part;
    }
    return 1;
}

int __stdcall DllMainCRTStartup(void *module, unsigned long reason, void *reserved) { return 1; }
