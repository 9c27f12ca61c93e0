"""Named pipes of Windows that one user has alone: the name for a home, who made one, and who may use it.

Unlike a Unix socket a pipe lies in no folder: everybody sees its name and may be first to take it. So it is made for its first
owner only (no second maker, no other computer), its list lets that one user in and nobody else, and a client sends nothing
before it has seen that the pipe belongs to its own user. Sources: Microsoft, "Named Pipe Security and Access Rights" (the list
that a pipe has by default lets everybody read) and "Security Descriptor String Format".
"""

import hashlib
import os
import sys
from pathlib import Path

PREFIX = "\\\\.\\pipe\\cottage-"


def name_of(path: Path) -> str:
    """The pipe that stands for the socket ``path``; both ends find it by that."""
    return PREFIX + hashlib.sha256(os.path.normcase(os.path.realpath(path)).encode()).hexdigest()[:32]


if sys.platform == "win32":
    import ctypes
    from ctypes import byref, c_void_p, wintypes

    BUFFER = 8192
    _DUPLEX, _FIRST, _OVERLAPPED = 0x3, 0x80000, 0x40000000
    _BYTES_AND_LOCAL = 0x8  # PIPE_TYPE_BYTE and PIPE_READMODE_BYTE are 0; PIPE_REJECT_REMOTE_CLIENTS.
    _ANY_NUMBER = 255
    _KERNEL_OBJECT, _OWNER, _LIST = 6, 0x1, 0x4
    _TOKEN_QUERY, _TOKEN_USER = 0x8, 1
    _REVISION = 1
    _kernel = ctypes.WinDLL("kernel32", use_last_error=True)
    _security = ctypes.WinDLL("advapi32", use_last_error=True)
    _kernel.GetCurrentProcess.restype = wintypes.HANDLE
    _kernel.CreateNamedPipeW.restype = wintypes.HANDLE

    class _Attributes(ctypes.Structure):
        _fields_ = (("size", wintypes.DWORD), ("descriptor", c_void_p), ("inherit", wintypes.BOOL))

    def user() -> str:
        """The user of this process, as ``S-1-5-21-...``; raises OSError."""
        token = wintypes.HANDLE()
        process = wintypes.HANDLE(_kernel.GetCurrentProcess())
        _held(_security.OpenProcessToken(process, _TOKEN_QUERY, byref(token)))
        try:
            size = wintypes.DWORD()
            _security.GetTokenInformation(token, _TOKEN_USER, None, 0, byref(size))
            found = ctypes.create_string_buffer(size.value)
            _held(_security.GetTokenInformation(token, _TOKEN_USER, found, size, byref(size)))
            return _sid_text(c_void_p.from_buffer(found))
        finally:
            _kernel.CloseHandle(token)

    def create(name: str, first: bool) -> int:
        """One more end of the pipe ``name`` for this user alone, opened for overlapped reading and writing.

        Raises:
            OSError: the name is taken, where this should be the first; or the list that the pipe has is not what was asked for.
        """
        mine = user()
        text = f"O:{mine}D:P(A;;FA;;;{mine})"
        descriptor = c_void_p()
        _held(
            _security.ConvertStringSecurityDescriptorToSecurityDescriptorW(
                wintypes.LPCWSTR(text), _REVISION, byref(descriptor), None
            )
        )
        attributes = _Attributes(ctypes.sizeof(_Attributes), descriptor, False)
        mode = _DUPLEX | _OVERLAPPED | (_FIRST if first else 0)
        handle = _kernel.CreateNamedPipeW(
            wintypes.LPCWSTR(name), mode, _BYTES_AND_LOCAL, _ANY_NUMBER, BUFFER, BUFFER, 0, byref(attributes)
        )
        failed = ctypes.get_last_error()
        _kernel.LocalFree(descriptor)
        if handle in (None, wintypes.HANDLE(-1).value):
            raise ctypes.WinError(failed)
        made = int(handle)
        if (found := access_of(made)) != text:
            _kernel.CloseHandle(wintypes.HANDLE(made))
            raise OSError(f"the pipe {name} has the access list {found}, not {text}")
        return made

    def access_of(handle: int) -> str:
        """Owner and list of the pipe behind ``handle``, as a descriptor's text; raises OSError."""
        descriptor, text = c_void_p(), wintypes.LPWSTR()
        what = _OWNER | _LIST
        code = _security.GetSecurityInfo(
            wintypes.HANDLE(handle), _KERNEL_OBJECT, what, None, None, None, None, byref(descriptor)
        )
        if code:
            raise ctypes.WinError(code)
        try:
            _held(
                _security.ConvertSecurityDescriptorToStringSecurityDescriptorW(
                    descriptor, _REVISION, what, byref(text), None
                )
            )
            found = text.value or ""
            _kernel.LocalFree(text)
            return found
        finally:
            _kernel.LocalFree(descriptor)

    def owner_of(handle: int) -> str:
        """The user who made the pipe behind ``handle``, as ``user``; raises OSError."""
        return access_of(handle).removeprefix("O:").partition("D:")[0]

    def is_mine(handle: int) -> bool:
        """Whether the pipe behind ``handle``, at either end, was made by this user; raises OSError."""
        return owner_of(handle) == user()

    def server_of(handle: int) -> int:
        """The process that made the end which ``handle`` is connected to; 0 where the system does not say."""
        found = wintypes.ULONG()
        return found.value if _kernel.GetNamedPipeServerProcessId(wintypes.HANDLE(handle), byref(found)) else 0

    def _sid_text(sid: c_void_p) -> str:
        text = wintypes.LPWSTR()
        _held(_security.ConvertSidToStringSidW(sid, byref(text)))
        found = text.value or ""
        _kernel.LocalFree(text)
        return found

    def _held(done: int) -> None:
        if not done:
            raise ctypes.WinError(ctypes.get_last_error())
